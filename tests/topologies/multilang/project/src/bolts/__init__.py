"""
Bolts of C{pystorm}.
"""
