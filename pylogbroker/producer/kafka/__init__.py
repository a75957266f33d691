"""
The producer of today's protocol.
"""
