"""
Who is on the line: a client that speaks something else on our port (spec: DESIGN, *a client of another kind*).

The first bytes of a connection whose first request was refused are compared with what other programs say first. It is a guess, for a log line.
"""

from __future__ import annotations

import struct

_KAFKA_HEAD = struct.Struct(">ihhih")
_KAFKA_KEY_MAX = 100
_KAFKA_VERSION_MAX = 20
_CORRELATION_MAX = 1 << 24
_OUR_KEY_MAX = 4

_FIRST_WORDS = (
    (
        (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT "),
        "HTTP",
    ),
    ((b"PRI * HTTP/2",), "HTTP/2"),
    ((b"\x16\x03",), "TLS"),
    ((b"SSH-",), "SSH"),
    ((b"*1\r\n", b"*2\r\n", b"*3\r\n", b"PING"), "Redis"),
    ((b"CONNECT\n", b"STOMP\n"), "STOMP"),
    ((b"AMQP",), "AMQP"),
    ((b"ruok", b"stat", b"srvr"), "ZooKeeper's four-letter words"),
)


def sniff(greeting: bytes) -> str | None:
    """
    What a client seems to speak.

    @param greeting: its first bytes, some dozens of them.
    @return: a name for people, or L{None} when nothing comes to mind.
    """
    for words, name in _FIRST_WORDS:
        if greeting.startswith(words):
            return name
    if _looksLikeKafka(greeting):
        return "the protocol of Kafka 0.8 or later"
    return None


def _looksLikeKafka(greeting: bytes) -> bool:
    """
    Size, API key, API version, correlation id, then a client id of printable letters (or none). A broken request of 0.7 must not be taken for that:
    where it has a topic, Kafka has a correlation id, which counts up from 0; and a partition reads as a client id without letters.
    """
    if len(greeting) < _KAFKA_HEAD.size:
        return False
    size, key, version, correlation, idSize = _KAFKA_HEAD.unpack_from(greeting)
    if key <= _OUR_KEY_MAX and idSize < 1:
        return False
    name = greeting[_KAFKA_HEAD.size : _KAFKA_HEAD.size + max(idSize, 0)]
    return (
        _KAFKA_HEAD.size - 4 <= size < 1 << 20
        and 0 <= key <= _KAFKA_KEY_MAX
        and 0 <= version <= _KAFKA_VERSION_MAX
        and 0 <= correlation < _CORRELATION_MAX
        and -1 <= idSize <= min(size, 250)
        and all(32 <= byte < 127 for byte in name)
    )
