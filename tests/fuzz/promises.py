"""
What must hold for the decoders whatever bytes they are given: functions from bytes to nothing that
raise C{AssertionError}.

The same promises are asked for in the gate, with seeded mutations of what real clients sent
(L{tests.fuzz.test_decoders}), and for an hour by atheris (L{tests.fuzz.atheris_decoders}). Fuzzed
bytes hardly ever have a right checksum, so that a broker's deeper floors would stay dark; two of
the promises therefore repair the bytes first: C{wrapped} makes them the payload of a wrapper,
C{nested} the messages inside one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

from crc32c import crc32c
from twisted.internet.task import Clock

from pylogbroker.errors import (
    CorruptCompressionError,
    DecompressionLimitError,
    FormatError,
    FrameSizeError,
    MessageTooLargeError,
    UnknownCodecError,
    UnknownRequestError,
    WireError,
)
from pylogbroker.interfaces import CheckLimits
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from pylogbroker.protocol.kafka.requests import decodeHeader
from pylogbroker.protocol.kafka.requests import decodeRequest as decodeKafkaRequest
from pylogbroker.protocol.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Produce,
    ProduceRuns,
    Request,
    RequestDecoder,
    decodeRequest,
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import (
    decodeFetch,
    decodeMultiFetch,
    decodeOffsets,
    fetchHeader,
    multiFetchHeader,
)
from pylogbroker.protocol.kafka07.responses import encodeOffsets as encodeOffsetsResponse
from pylogbroker.records import kafka07format, scanwindow
from pylogbroker.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from pylogbroker.records.kafka07format import validatePlain, validateSet
from pylogbroker.records.kafkaformat import CHECKED_RULES, LOG_RULES, KafkaFormat, RecordRules
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet, wrapCompressed
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    encodeBatch,
    iterateRecords,
    readHeader,
)
from pylogbroker.topologies import messages as topologymessages
from pylogbroker.topologies.streammanager.manager import StreamManager
from tests.fuzz import judge
from tests.topologies.streammanager.containers import physicalPlan

KEYS = tuple(ApiKey)
ALL_KEYS = frozenset(ApiKey)
FRAME_SIZE_MAX = 1 << 16
LIMITS = CheckLimits(payloadSizeMax=4096, decompressedSizeMax=1 << 16, depthMax=3)
UNOPENED = (CorruptCompressionError, DecompressionLimitError)
"""A wrapper that is both corrupt and too large may be refused for either."""

SCAN_WINDOW_SIZES = (16, 17, 20, 31, 64, 1024, 1 << 20)
"""A window holds a header at least; entries that are larger than it are judged piece by piece."""


def demand(holds: bool, *what: object) -> None:
    """An C{assert} that C{python -O} does not take away."""
    if not holds:
        raise AssertionError(*what)


# -- requests --------------------------------------------------------------------------------------


def encode(request: Request) -> bytes:
    """A request as a frame again; of a run of PRODUCE requests, all of them."""
    if isinstance(request, Produce):
        return b"".join(
            encodeProduce(request.topic, request.partition, data) for data in request.sets
        )
    if isinstance(request, ProduceRuns):
        return b"".join(map(encode, request.produces))
    if isinstance(request, MultiProduce):
        return encodeMultiProduce(
            (each.topic, each.partition, each.sets[0]) for each in request.produces
        )
    if isinstance(request, Fetch):
        return encodeFetch(*request)
    if isinstance(request, MultiFetch):
        return encodeMultiFetch(request.fetches)
    return encodeOffsets(*request)


def single(requests: Iterable[Request]) -> Iterator[Request]:
    """
    Runs of PRODUCE requests taken apart. Those that follow each other are sorted by partition: a
    decoder keeps the order of each partition only.
    """
    produces: list[Produce] = []
    for request in requests:
        if isinstance(request, Produce | ProduceRuns):
            runs = (request,) if isinstance(request, Produce) else request.produces
            produces += (
                Produce(topic, partition, [data])
                for topic, partition, sets in runs
                for data in sets
            )
            continue
        yield from sorted(produces, key=_partition)
        produces.clear()
        yield request
    yield from sorted(produces, key=_partition)


def _partition(produce: Produce) -> tuple[str, int]:
    return produce.topic, produce.partition


def readWhole(
    stream: bytes, frameSizeMax: int = FRAME_SIZE_MAX
) -> tuple[list[Request], type[WireError] | None]:
    """
    The requests of a stream and the error that ends it, by slicing it into frames; the plainest way
    to read one.
    """
    requests: list[Request] = []
    at = 0
    while len(stream) - at >= 4:
        size = int.from_bytes(stream[at : at + 4], "big", signed=True)
        if not 0 < size <= frameSizeMax:
            return list(single(requests)), FrameSizeError
        if size > len(stream) - at - 4:
            break
        try:
            requests.append(decodeRequest(stream[at + 4 : at + 4 + size]))
        except WireError as error:
            return list(single(requests)), type(error)
        at += 4 + size
    return list(single(requests)), None


def readPieces(
    pieces: Iterable[bytes], patient: bool = False, frameSizeMax: int = FRAME_SIZE_MAX
) -> tuple[list[Request], type[WireError] | None]:
    """
    The same by a L{RequestDecoder} that is fed pieces.

    @param patient: take only when all is fed, like a connection that is busy meanwhile.
    """
    decoder = RequestDecoder(frameSizeMax)
    requests: list[Request] = []
    fed = 0
    try:
        for piece in pieces:
            decoder.feed(piece)
            fed += len(piece)
            if patient:
                continue
            while (request := decoder.takeRequest()) is not None:
                requests.append(request)
            demand(
                decoder.frameSize >= 0 and decoder.heldSize <= fed,
                "what is held is more than what came",
            )
        while patient and (request := decoder.takeRequest()) is not None:
            requests.append(request)
    except WireError as error:
        return list(single(requests)), type(error)
    return list(single(requests)), None


def cut(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """Data in pieces."""
    places = sorted({0, len(data), *(position for position in positions if position <= len(data))})
    return [data[start:end] for start, end in pairwise(places)]


def requestStream(data: bytes) -> None:
    """
    However a stream of frames is cut up, and whenever it is asked, the decoder gives what slicing
    gives; nothing but L{WireError} comes out.
    """
    countOfCuts = data[0] % 16 if data else 0
    head, stream = data[1 : 1 + 2 * countOfCuts], data[1 + 2 * countOfCuts :]
    positions = [position for (position,) in struct.iter_unpack(">H", head[: len(head) & ~1])]
    expected = readWhole(stream)
    pieces = cut(stream, positions)
    demand(readPieces(pieces) == expected, "cut", pieces)
    demand(readPieces(pieces, patient=True) == expected, "cut, and taken at the end", pieces)
    demand(readPieces([stream]) == expected, "whole")
    for request in expected[0]:
        roundTrip(request)


def roundTrip(request: Request) -> None:
    """What a decoded request is encoded to decodes to the same."""
    demand(decodeRequest(encode(request)[4:]) == request, "round trip", request)


def requestBody(data: bytes) -> None:
    """
    A frame's body is a L{WireError} or a request whose encoding the body begins with (but for
    topics that are not UTF-8).
    """
    try:
        request = decodeRequest(data)
    except WireError as error:
        demand(
            len(data) < 2
            or isinstance(error, UnknownRequestError)
            == (not 0 <= int.from_bytes(data[:2], "big", signed=True) <= 4),
            error,
        )
        return
    roundTrip(request)
    if b"\xef\xbf\xbd" not in encode(request):
        demand(
            data.startswith(encode(request)[4:]), "what was decoded is not what was there", request
        )


def responseBody(data: bytes) -> None:
    """A response's body is a L{WireError} for each reader of it, or encodes to what was there."""
    for decode, encodeAgain in (
        (decodeFetch, _encodeFetchResponse),
        (decodeMultiFetch, _encodeMultiFetchResponse),
        (decodeOffsets, _encodeOffsetsResponse),
    ):
        try:
            found: Any = decode(data)
        except WireError:
            continue
        demand(data[2:] == encodeAgain(found)[6:], decode.__name__, found)
    decoder = FrameDecoder(FRAME_SIZE_MAX)
    decoder.feed(data)
    try:
        while (frame := decoder.take()) is not None:
            demand(0 < len(frame) <= FRAME_SIZE_MAX, len(frame))
    except FrameSizeError:
        pass


def _encodeFetchResponse(found: tuple[int, bytes]) -> bytes:
    return fetchHeader(found[0], len(found[1])) + found[1]


def _encodeMultiFetchResponse(found: list[tuple[int, bytes]]) -> bytes:
    return multiFetchHeader([len(data) for _, data in found]) + b"".join(
        fetchHeader(code, len(data)) + data for code, data in found
    )


def _encodeOffsetsResponse(found: tuple[int, list[int]]) -> bytes:
    return encodeOffsetsResponse(found[1])


# -- message sets ----------------------------------------------------------------------------------


def upToError(things: Iterator[Any]) -> tuple[list[Any], type[Exception] | None]:
    """
    What an iterator gives, and the class of the error, ours or the judge's verdict, that ends it.
    """
    found = []
    try:
        for thing in things:
            found.append(thing)
    except judge.RefusedError as refused:
        return found, refused.error
    except FormatError as error:
        demand(error.position >= 0, error)
        return found, type(error)
    return found, None


def alike(
    mine: tuple[list[Any], type[Exception] | None], judged: tuple[list[Any], type[Exception] | None]
) -> bool:
    """Whether two such readings agree, with the licence of L{UNOPENED}."""
    return mine[0] == judged[0] and (
        mine[1] == judged[1] or (mine[1] in UNOPENED and judged[1] in UNOPENED)
    )


def messageSet(data: bytes) -> None:
    """
    Every reading of a message set, shallow, deep and quick, agrees with the judge's: the same
    messages, offsets, end, and error.
    """
    base = 1000
    messages = MessageSet(data, base, limits=LIMITS)
    top = upToError(judge.entries(data))
    shallow = [
        (seen.payload, seen.magic, seen.attributes, seen.checksum, base + seen.end)
        for seen in top[0]
    ]
    demand(
        upToError((*each.message, each.nextOffset) for each in messages.shallow())
        == (shallow, top[1]),
        "shallow",
    )
    found, error = upToError(judge.deep(data, LIMITS.decompressedSizeMax, LIMITS.depthMax))
    expected = [(payload, base + end) for payload, end in found], error
    demand(
        alike(upToError(messages.payloads()), expected),
        "payloads",
        upToError(messages.payloads()),
        expected,
    )
    demand(
        alike(upToError((each.message.payload, each.nextOffset) for each in messages), expected),
        "iteration",
    )
    try:
        validSize = messages.validSize
    except FormatError as failure:
        demand(type(failure) is top[1], failure)
    else:
        demand(top[1] is None and validSize == (top[0][-1].end if top[0] else 0), validSize)
    messageCheck(data)


def messageCheck(data: bytes) -> None:
    """
    A broker's check agrees with the judge's, and its short way accepts only what the long way keeps
    whole.
    """
    try:
        checked: tuple[int, int] | type[FormatError] = validateSet(data, LIMITS)
    except FormatError as error:
        checked = type(error)
    try:
        judged = judge.count(
            data, LIMITS.payloadSizeMax, LIMITS.decompressedSizeMax, LIMITS.depthMax
        )
        expected: tuple[int, int] | type[FormatError] = (
            MessageTooLargeError if judged is None else judged
        )
    except judge.RefusedError as refused:
        expected = refused.error
    demand(checked == expected or (checked in UNOPENED and expected in UNOPENED), checked, expected)
    done, count = validatePlain([data], LIMITS.payloadSizeMax)
    if done:
        demand(
            done == 1 and checked == (len(data), count),
            "accepted the short way alone",
            checked,
        )
    else:
        demand(count == 0, "messages of no set", count)
    demand(
        validatePlain([data, data], LIMITS.payloadSizeMax) == (2 * done, 2 * count),
        "a set depends on its neighbour",
    )


def wrapped(data: bytes) -> None:
    """
    The same for a set with a wrapper whose payload is whatever was given, and plain messages around
    it.
    """
    codec = data[0] % 4 if data else 0
    messageSet(
        encodeMessage(b"before") + encodeMessage(data[1:], codec=codec) + encodeMessage(b"after", 0)
    )


def repaired(data: bytes) -> bytes:
    """
    Entries made of data: sizes cut to what is there, magic bytes mostly made known, checksums
    mostly made right. What comes out is not always valid.
    """
    out = []
    at = 0
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 2], "big") % 512
        flags, attributes = data[at + 2], data[at + 3]
        payload = data[at + 4 : at + 4 + size]
        at += 4 + size
        if flags < 16:
            out.append(data[at - 4 - len(payload) : at])
        elif flags < 96:
            out.append(encodeMessage(payload, 0))
        elif flags < 192 or attributes % 4 == 3:
            out.append(encodeMessage(payload, codec=attributes))
        elif attributes % 4 in (GZIP, SNAPPY):
            out.append(wrapCompressed(attributes % 4, repaired(payload)))
        else:
            out.append(encodeMessage(payload))
    return b"".join(out)


def nested(data: bytes) -> None:
    """The same for sets of entries that are mostly valid, in up to five wrappers."""
    if not data:
        return
    inner = repaired(data[1:])
    for level in range(data[0] % 6):
        inner = wrapCompressed((GZIP, SNAPPY)[data[0] >> level & 1], inner)
    messageSet(inner)


def compression(data: bytes) -> None:
    """
    A decompressor gives what the judge's gives, within its limit, or one of its two errors; what a
    compressor wrote comes back.
    """
    sizeMax = (0, 1, 64, 4096, 1 << 16)[data[0] % 5] if data else 0
    for codec, judged in ((GZIP, judge.gunzip), (SNAPPY, judge.unsnappy)):
        for foreign in (data[1:], data):
            try:
                opened = decompress(codec, foreign, sizeMax)
            except UNOPENED as error:
                try:
                    demand(
                        len(judged(foreign)) > sizeMax
                        and isinstance(error, DecompressionLimitError),
                        "refused what is good",
                        error,
                    )
                except judge.RefusedError:
                    pass
                continue
            demand(len(opened) <= sizeMax and opened == judged(foreign), "opened to something else")
        packed = compress(codec, data)
        demand(decompress(codec, packed, len(data)) == judged(packed) == data, "round trip")
        if data:
            try:
                decompress(codec, packed, len(data) - 1)
            except DecompressionLimitError:
                pass
            else:
                raise AssertionError("one byte more than allowed came out")
    for codec in (LZ4, ZSTD):
        for foreign in (data[1:], data):
            try:
                demand(len(decompress(codec, foreign, sizeMax)) <= sizeMax, "too much")
            except UNOPENED:
                pass
        demand(decompress(codec, compress(codec, data), len(data)) == data, "round trip")
    try:
        decompress(data[0] | 8 if data else 8, data, sizeMax)
    except UnknownCodecError:
        pass
    else:
        raise AssertionError("a codec that nobody knows")


def scan(data: bytes) -> None:
    """
    A walk over a segment finds what the judge would recover, by steps and in one go, with windows
    of every size; it never raises.
    """
    start = 0
    windowSize = (
        SCAN_WINDOW_SIZES[data[0] % len(SCAN_WINDOW_SIZES)] if data else SCAN_WINDOW_SIZES[0]
    )
    data = data[1:] if data and data[0] < 128 else repaired(data[1:])
    kept = judge.recoverable(data)
    before, scanwindow.SCAN_WINDOW_SIZE = scanwindow.SCAN_WINDOW_SIZE, windowSize
    try:
        for end in (len(data), len(data) + 5):  # the second: a file that has become shorter
            scans = [
                kafka07format.Kafka07Format().scan(
                    lambda position, size: data[position : position + size], 5000, start, end
                )
                for _ in range(2)
            ]
            expected = [
                (seen.start, seen.end - seen.start, 5000 + seen.start, 5000 + seen.end)
                for seen in kept
            ]
            demand([tuple(entry[:4]) for entry in scans[0]] == expected, "steps")
            behind = kept[-1].end if kept else 0
            demand(
                scans[1].skipToEnd() == scans[0].position == behind,
                "in one go",
                scans[1].position,
                behind,
            )
            demand(
                (scans[0].reason is None) == (scans[1].reason is None) == (behind == end),
                scans[0].reason,
            )
    finally:
        scanwindow.SCAN_WINDOW_SIZE = before


def plainSet(data: bytes) -> None:
    """What an application sends comes back, in every packing."""
    payloads = data.split(b"\n")
    for magic in (0, 1):
        for codec in (0, GZIP, SNAPPY):
            encoded = encodeSet(payloads, codec, magic)
            limits = CheckLimits()
            demand(
                [payload for payload, _ in MessageSet(encoded).payloads()] == payloads, codec, magic
            )
            demand(validateSet(encoded, limits) == (len(encoded), len(payloads)), codec, magic)


# -- today's protocol ------------------------------------------------------------------------------


def chosen(data: bytes) -> tuple[ApiKey, int]:
    """A request and a version, by two bytes."""
    key = KEYS[data[0] % len(KEYS)]
    return key, key.firstVersion + data[1] % (key.lastVersion - key.firstVersion + 1)


def kafkaRequest(data: bytes) -> None:
    """
    A frame is a L{WireError} or a request that comes back from its encoding; the decoders of
    Produce and Fetch, which are written by hand, agree with that for all messages. With two bytes
    for the kind in the place of a head, and as it is.
    """
    kafkaFrame(data)
    if len(data) < 2:
        return
    key, version = chosen(data)
    tags = b"\0" * (version >= key.flexibleVersion)
    kafkaFrame(struct.pack(">hhih", key, version, 7, 1) + b"f" + tags + data[2:])


def kafkaFrame(frame: bytes) -> None:
    """A frame is a L{WireError} or a request that comes back from its encoding."""
    try:
        header, position = decodeHeader(frame, ALL_KEYS)
    except WireError as error:
        demand(_outcome(lambda: decodeKafkaRequest(frame, ALL_KEYS)) is type(error), error)
        return
    version = header.apiVersion
    if not header.isVersionServed:
        return

    def decodeByTable() -> Any:
        return header.apiKey.requestClass.decode(frame, version, position)[0]

    found = _outcome(lambda: decodeKafkaRequest(frame, ALL_KEYS)[1])
    table = _outcome(decodeByTable)
    if isinstance(table, type):
        demand(found is table, "another error", header, found, table)
        return
    demand(table == table.decode(table.encode(version), version)[0] or _hasNan(table), table)
    if header.apiKey is ApiKey.PRODUCE:
        demand(found == _produceOf(table), found, table)
    elif header.apiKey is ApiKey.FETCH:
        demand(found == _fetchOf(table, version), found, table)


def _outcome(decode: Callable[[], Any]) -> Any:
    """The decoded request, or the class of the error."""
    try:
        return decode()
    except WireError as error:
        return type(error)


def _hasNan(message: Any) -> bool:
    """Whether a message has a number that is not equal to itself."""
    return "nan" in repr(message)


def _produceOf(found: Any) -> Any:
    return ProduceRequest(
        found.transactionalId,
        found.acks,
        found.timeoutMs,
        [
            TopicProduceData(
                topic.name,
                topic.topicId,
                [PartitionProduceData(part.index, part.records) for part in topic.partitionData],
            )
            for topic in found.topicData
        ],
    )


def _fetchOf(found: Any, version: int) -> Any:
    names = FetchPartition._fields
    return FetchRequest(
        found.replicaId if version < 15 else found.replicaState.replicaId,
        found.maxWaitMs,
        found.minBytes,
        found.maxBytes,
        found.isolationLevel,
        found.sessionId,
        found.sessionEpoch,
        [
            FetchTopic(
                topic.topic,
                topic.topicId,
                [
                    FetchPartition(*(getattr(part, name) for name in names))
                    for part in topic.partitions
                ],
            )
            for topic in found.topics
        ],
        [
            ForgottenTopic(topic.topic, topic.topicId, topic.partitions)
            for topic in found.forgottenTopicsData
        ],
        found.rackId,
        found.replicaState.replicaEpoch if version >= 15 else -1,
    )


def kafkaResponse(data: bytes) -> None:
    """A response is a L{WireError}, or comes back from its encoding."""
    if len(data) < 2:
        return
    key, version = chosen(data)
    try:
        found, end = key.responseClass.decode(data, version, 2)
    except WireError:
        return
    demand(2 <= end <= len(data), end)
    again, _ = key.responseClass.decode(found.encode(version), version)
    demand(again == found or _hasNan(found), key, version, found)


def mendedBatch(data: bytes) -> bytes:
    """Data with the size, the magic byte and the checksum of a batch, as far as there is room."""
    batch = bytearray(data)
    if len(batch) >= BATCH_OVERHEAD:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def kafkaBatch(data: bytes) -> None:
    """
    A batch is refused, or has the records that its header says, and they come back from their
    encoding. The quick check of what clients send accepts only what the long one does, with the
    same counts; and that accepts all that is accepted with every record checked.
    """
    batch = data[1:] if data and data[0] < 32 else mendedBatch(data[1:])
    quick, checked = (
        KafkaFormat(RecordRules(isEveryRecordChecked=isChecked)) for isChecked in (False, True)
    )
    whole = _validated(quick, batch)
    plain = None
    try:
        plain = quick.validatePlain([batch], LIMITS.payloadSizeMax)
    except FormatError as error:
        demand(isinstance(whole, type) and issubclass(whole, FormatError), error, whole)
    if plain is not None:
        demand(not isinstance(whole, type), "accepted the short way alone", whole)
        demand(_counts(plain) == _counts(whole), plain, whole)
    opened = _validated(checked, batch)
    if not isinstance(opened, type):
        demand(not isinstance(whole, type), "accepted with its records alone", whole)
        demand(_counts(opened) == _counts(whole), opened, whole)
        header = readHeader(batch)
        records = list(iterateRecords(batch, 0, header, LIMITS))
        demand(len(records) == header.recordCount == opened.messageCount, header)
        for codec in (0, header.codec):
            again = encodeBatch(records, codec=codec)
            demand(list(iterateRecords(again, 0, readHeader(again))) == records, records)
    for rules in (LOG_RULES, CHECKED_RULES):
        _validated(KafkaFormat(rules), batch * 2)


def _validated(format: KafkaFormat, data: bytes) -> Any:
    try:
        return format.validate(data, LIMITS)
    except FormatError as error:
        return type(error)


def _counts(found: Any) -> tuple[int, int, int]:
    return found.size, found.messageCount, found.offsetCount


def topologyFrame(data: bytes) -> None:
    """
    The body of a frame between processes of a topology is a L{WireError}, or comes back from its
    encoding; a stream manager routes each entry of a batch once, whole, in order, and undecoded.
    """
    if not data:
        return
    if data[0] != topologymessages.BATCH:
        try:
            message = topologymessages.decodeControl(data)
        except WireError:
            return
        again = topologymessages.encodeControl(message)
        demand(topologymessages.decodeControl(again[4:]) == message, message)
        return
    try:
        number = topologymessages.batchNumber(data)
        entries = topologymessages.decodeBatch(data)
    except WireError:
        return
    pieces = [topologymessages.encodeEntry(*each) for each in entries]
    demand(topologymessages.encodeBatch(number, pieces)[4:] == data, entries)
    for each in entries:
        try:
            numbers = topologymessages.decodeNumbers(each.data)
        except WireError:
            demand(len(each.data) % 8 > 0, each)
        else:
            demand(topologymessages.encodeNumbers(numbers) == each.data, each)
    manager = StreamManager(Clock(), "words", 1, _nowhere, Random(1))
    manager.setPlan(physicalPlan({1: range(8)}))
    try:
        manager.route(data)
    except WireError:  # what an acker was sent is not what it should be
        return
    for task in range(8):
        sender = manager._instances[task].destination._sender
        sender.begin(False, 0)
        routed: list[topologymessages.BatchEntry] = []
        while (frame := sender.take()) is not None:
            routed += topologymessages.decodeBatch(frame[4:])
        mine = [each for each in entries if each[:2] == (topologymessages.TUPLES, task)]
        tuples = [each for each in routed if each.kind == topologymessages.TUPLES]
        demand(tuples == mine, task, entries)


def _nowhere(address: str) -> Any:
    raise AssertionError(address)


PROMISES: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        requestStream,
        requestBody,
        responseBody,
        messageSet,
        wrapped,
        nested,
        compression,
        scan,
        plainSet,
        kafkaRequest,
        kafkaResponse,
        kafkaBatch,
        topologyFrame,
    )
}
