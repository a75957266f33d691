"""
Every request in the log, for who hunts a client's mistake: what 0.7.2 has the logger C{kafka.request.logger} for (spec-0.7 metrics §5).

It stands in front of a dialect, and only while it is asked for: without it, a request meets nothing of this. Its events have the namespace
C{pylogbroker.requests} and fields, so that an observer can tell them from the others.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

from pylogbroker.broker.connection import IProtocolHandler
from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.protocol.kafka07.requests import Fetch, MultiFetch, MultiProduce, Offsets, Produce
from pylogbroker.types import TopicPartition

NAMESPACE = "pylogbroker.requests"


class RequestLog:
    """A dialect that tells what it is asked, and lets another one do it."""

    def __init__(self, dialect: IProtocolHandler, log: Logger | None = None) -> None:
        self._dialect = dialect
        self._log = log or Logger(NAMESPACE)

    def newDecoder(self) -> Any:
        return self._dialect.newDecoder()

    def describe(self, request: Any) -> tuple[str, TopicPartition | None]:
        return self._dialect.describe(request)

    def carryOut(self, request: Any, unproven: UnackedProduces) -> Any:
        """Log it, whatever becomes of it, and carry it out."""
        parts = (
            request.produces
            if isinstance(request, MultiProduce)
            else request.fetches
            if isinstance(request, MultiFetch)
            else (request,)
        )
        for part in parts:
            self._tell(part, len(parts))
        return self._dialect.carryOut(request, unproven)

    def _tell(self, part: Any, partCount: int) -> None:
        where: dict[str, Any] = {
            "topic": part.topic,
            "partition": part.partition,
            "partCount": partCount,
        }
        if isinstance(part, Produce):
            sentence = "PRODUCE {topic!r} {partition}: {requestCount} requests, {size} bytes"
            self._log.info(
                sentence, requestCount=len(part.sets), size=sum(map(len, part.sets)), **where
            )
        elif isinstance(part, Fetch):
            self._log.info(
                "FETCH {topic!r} {partition} from {offset}: at most {sizeMax} bytes",
                offset=part.offset,
                sizeMax=part.sizeMax,
                **where,
            )
        else:
            assert isinstance(part, Offsets)
            self._log.info(
                "OFFSETS {topic!r} {partition} before {time}: at most {countMax}",
                time=part.time,
                countMax=part.countMax,
                **where,
            )
