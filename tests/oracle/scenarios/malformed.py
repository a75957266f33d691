"""Requests that cannot be decoded, and requests whose fields all have their defaults."""

from __future__ import annotations

import random
import struct

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.groups import awaitCoordinator
from tests.oracle.scenarios.idempotence import newProducer
from tests.oracle.steps import Ask, Raw, Setting, Steps, scenario

_UNSENT = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def _isSent(key: ApiKey, version: int) -> bool:
    """Apache never answers AddPartitionsToTxn of version 4 or 5 without transactions."""
    return key not in _UNSENT and not (key is ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4)


def _frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _header(
    key: int, version: int, isFlexible: bool = False, clientId: bytes | None = b"oracle"
) -> bytes:
    head = struct.pack(">hhi", key, version, 1)
    head += (
        struct.pack(">h", -1) if clientId is None else struct.pack(">h", len(clientId)) + clientId
    )
    return head + b"\0" * isFlexible


@scenario(isAlone=True)
def defaults(setting: Setting) -> Steps:
    """Every request at every version, with the defaults of its fields."""
    yield from awaitCoordinator()
    for key in ApiKey:
        for version in range(key.firstVersion, key.lastVersion + 1):
            if not _isSent(key, version):
                continue
            body = key.requestClass()
            acks = getattr(body, "acks", None)
            if acks == 0:
                body.acks = 1
            if key is ApiKey.METADATA and version == 0:
                continue
            yield Ask("defaults", key, version, body)


@scenario(isAlone=True)
def cutRequests(setting: Setting) -> Steps:
    """Every request without a body, cut, and with bytes behind it."""
    yield from awaitCoordinator()
    yield from newProducer()
    for key in ApiKey:
        for version in sorted({key.firstVersion, key.lastVersion}):
            if not _isSent(key, version):
                continue
            body = key.requestClass()
            if getattr(body, "acks", None) == 0:
                body.acks = 1
            if key is ApiKey.METADATA:
                body.topics = []
            whole = body.encode(version)
            own = "cut-requests"
            if whole:
                yield Ask("no body", key, version, b"", own=own)
            if len(whole) > 1:
                yield Ask("one byte less", key, version, whole[:-1], own=own)
            yield Ask("bytes behind", key, version, whole + b"\0\1\2", own=own)
            yield Ask("only 0xff", key, version, b"\xff" * max(len(whole), 8), own=own)


@scenario()
def strangeFrames(setting: Setting) -> Steps:
    """Frames and headers that are no requests."""
    api, meta = ApiKey.API_VERSIONS, ApiKey.METADATA
    for label, data in (
        ("size 0", _frame(b"")),
        ("size -1", struct.pack(">i", -1)),
        ("size -2147483648", struct.pack(">i", -(2**31))),
        ("size 100 MiB and one", struct.pack(">i", 100 * 1024 * 1024 + 1)),
        ("size 2147483647", struct.pack(">i", 2**31 - 1)),
        ("one byte", _frame(b"\0")),
        ("key alone", _frame(struct.pack(">h", 18))),
        ("key and version", _frame(struct.pack(">hh", 18, 0))),
        ("no client id", _frame(struct.pack(">hhi", 18, 0, 1))),
        ("null client id", _frame(_header(api, 0, clientId=None))),
        ("empty client id", _frame(_header(api, 0, clientId=b""))),
        ("client id of -2", _frame(struct.pack(">hhih", 18, 0, 1, -2))),
        ("client id too long", _frame(struct.pack(">hhih", 18, 0, 1, 100) + b"x")),
        ("client id no UTF-8", _frame(_header(api, 0, clientId=b"\xff\xfe"))),
        ("long client id", _frame(_header(api, 0, clientId=b"x" * 32767))),
        ("header tags", _frame(_header(api, 3) + b"\1\x05\3abc" + b"\7oracle\4one\0")),
        ("header tags cut", _frame(_header(api, 3) + b"\1\x05\x7fabc")),
        ("header tag twice", _frame(_header(meta, 9) + b"\2\5\1a\5\1b" + b"\1\0\0\0\0")),
        ("body tags", _frame(_header(meta, 9, True) + b"\1\0\0\0\1\x09\2ab")),
        ("body tags cut", _frame(_header(meta, 9, True) + b"\1\0\0\0\1\x09\x7fab")),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("TLS", bytes.fromhex("16030100c8010000c40303") + bytes(200)),
        ("2,147,483,647 topics", _frame(_header(meta, 1) + struct.pack(">i", 2**31 - 1))),
        ("-2 topics", _frame(_header(meta, 1) + struct.pack(">i", -2))),
        ("a topic name of -1", _frame(_header(meta, 1) + struct.pack(">ih", 1, -1))),
        ("a topic name of -2", _frame(_header(meta, 1) + struct.pack(">ih", 1, -2))),
        ("a topic name too long", _frame(_header(meta, 1) + struct.pack(">ih", 1, 32767) + b"x")),
        ("a name no UTF-8", _frame(_header(meta, 4) + struct.pack(">ih", 1, 2) + b"\xff\xfe\0")),
        ("compact count too long", _frame(_header(meta, 9, True) + b"\xff\xff\xff\xff\xff\x01")),
        ("compact count huge", _frame(_header(meta, 9, True) + b"\xff\xff\xff\xff\x07")),
        ("bool 2", _frame(_header(meta, 4) + struct.pack(">ib", 0, 2))),
        ("version -1 of Metadata", _frame(_header(meta, -1) + struct.pack(">i", 0))),
    ):
        number, version = struct.unpack_from(">hh", data, 4) if len(data) > 8 else (18, 0)
        key = meta if number == meta and 0 <= version <= meta.lastVersion else api
        if key is api and version != 3:
            version = 0
        yield Raw(label, data, key, version, own="strange")


@scenario(isAlone=True)
def randomBytes(setting: Setting) -> Steps:
    """Bytes changed at random in requests that only read."""
    yield from awaitCoordinator()
    chance = random.Random(43)
    bodies = (
        (ApiKey.METADATA, 1, messages.MetadataRequest(topics=[])),
        (ApiKey.METADATA, 12, messages.MetadataRequest(topics=[])),
        (
            ApiKey.API_VERSIONS,
            3,
            messages.ApiVersionsRequest(clientSoftwareName="a", clientSoftwareVersion="b"),
        ),
        (ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="random", keyType=9)),
        (ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=["random-bytes"])),
        (ApiKey.HEARTBEAT, 4, messages.HeartbeatRequest(groupId="random-bytes", memberId="m")),
        (ApiKey.LIST_OFFSETS, 5, messages.ListOffsetsRequest()),
    )
    for key, version, body in bodies:
        whole = body.encode(version)
        for number in range(12):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            yield Ask(f"random {number}", key, version, bytes(data), own="random-bytes")
