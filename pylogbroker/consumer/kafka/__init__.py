"""
The consumer of today's protocol.
"""
