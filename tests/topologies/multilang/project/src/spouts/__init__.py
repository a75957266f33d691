"""
Spouts of C{pystorm}.
"""
