"""
C{python -m tests.benchmarks.kafka.bareserver DIRECTORY}: the least that a server on Twisted can do
with Produce requests, to know what of a broker's cost is Twisted's. A module of its own, since it
is a program.

It splits the frames, checks the CRC-32C of the batches, and writes what came together with one
call, without stamps. With C{acks=all} the kernel syncs the file for it. It answers the same bytes,
but for the correlation id. There are no topics, offsets, limits or errors, and no request is
decoded but a connection's first. It serves one connection at a time. The first line of output is
the port.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

from crc32c import crc32c
from twisted.internet import epollreactor

from pylogbroker.net.aiofsync import AioFsync
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceResponse,
    TopicProduceData,
    frameProduceResponse,
)
from pylogbroker.protocol.kafka.requests import decodeRequest
from pylogbroker.records.recordbatch import CHECKED_POSITION, CRC_POSITION

RECEIVE_SIZE = 256 << 10
_CRC = struct.Struct(">I")


def main(folder: str) -> None:
    """Serve on a free port of the loopback interface until killed."""
    epollreactor.install()
    from twisted.internet import reactor as installed
    from twisted.internet.protocol import Protocol, ServerFactory

    reactor: Any = installed

    file = os.open(Path(folder) / "received", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sync = AioFsync(reactor)

    class BareProtocol(Protocol):
        transport: Any
        rest = b""
        batchAt = 0
        isFlushed = isFlushing = False
        unanswered = b""
        answerStart = answerEnd = b""

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)
            self.transport.bufferSize = RECEIVE_SIZE

        def dataReceived(self, data: bytes) -> None:
            if self.rest:
                data = self.rest + data
            view, at, end = memoryview(data), 0, len(data)
            batches: list[memoryview] = []
            answers: list[bytes] = []
            while end - at >= 4:
                behind = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if behind > end:
                    break
                if not self.batchAt:
                    self._learn(data[at + 4 : behind])
                batch = view[at + 4 + self.batchAt : behind]
                if crc32c(batch[CHECKED_POSITION:-3]) != _CRC.unpack_from(batch, CRC_POSITION)[0]:
                    raise ValueError("checksum")
                batches.append(batch)
                answers += (self.answerStart, data[at + 8 : at + 12], self.answerEnd)
                at = behind
            self.rest = data[at:]
            if batches:
                os.writev(file, batches)
                if self.isFlushed:
                    self.unanswered += b"".join(answers)
                    if not self.isFlushing:
                        self._flush()
                else:
                    self.transport.write(b"".join(answers))

        def _flush(self) -> None:
            answered, self.unanswered = self.unanswered, b""
            self.isFlushing = True

            def synced(error: int) -> None:
                self.isFlushing = False
                self.transport.write(answered)
                if self.unanswered:
                    self._flush()

            if not sync.fsync(file, synced):
                raise OSError("the kernel does not sync")

        def _learn(self, frame: bytes) -> None:
            """Find where the batch of such frames is, and what to answer."""
            header, request = decodeRequest(frame, (ApiKey.PRODUCE,))
            (topic,) = request.topicData
            (part,) = topic.partitionData
            self.isFlushed = request.acks < 0
            self.batchAt = len(frame) - len(part.records) - 3  # three fields without tags
            shown = TopicProduceData(topic.name, topic.topicId, [])
            response = PartitionProduceResponse(part.index, 0, 0, -1, 0)
            answer = frameProduceResponse(header.apiVersion, 0, shown, response)
            assert answer is not None
            self.answerStart, self.answerEnd = answer[:4], answer[8:]

    factory = ServerFactory()
    factory.protocol = BareProtocol
    factory.noisy = False
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1])
