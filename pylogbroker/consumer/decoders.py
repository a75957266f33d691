"""
From payloads to values: what C{decode} of C{createMessageStreams} may be. Any function of bytes will do; here are those that 0.7.2 brings.
"""

from __future__ import annotations


def decodeText(payload: bytes) -> str:
    """
    0.7.2's C{StringDecoder}, with UTF-8 in place of whatever the platform has.

    @raise UnicodeDecodeError: it is not UTF-8; it comes out of the stream, which goes on behind that message.
    """
    return payload.decode()
