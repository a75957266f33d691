"""
What a scenario yields, and what it gets back.

A scenario is a generator: it yields steps and is sent the answer to each, decoded, or L{None} where
the broker closed the connection or kept silent. Every answer is recorded under the step's label,
except where a step says otherwise. All that varies between brokers comes from the L{Setting}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ApiMessage

MAIN = "main"


class Setting(NamedTuple):
    """
    @ivar nodeId: of the broker.
    @ivar baseMs: an hour before the run; the times in requests are counted from here.
    """

    nodeId: int
    baseMs: int


class Ask(NamedTuple):
    """
    Send a request and wait for its answer.

    @ivar label: what is asked, in a few words; unique within key, version and scenario at best.
    @ivar body: an object of C{messages}, or bytes as they stand behind the header.
    @ivar on: the connection; it is opened at its first use, and again after it was closed.
    @ivar isAnswered: L{False}: do not wait. A L{Receive} reads the answer later, if there is one.
    @ivar own: of lists that name topics or groups, keep those with this prefix only: those that the
        scenario made.
    @ivar isRecorded: L{False}: the answer prepares something and is the scenario's alone.
    @ivar clientId: in the header.
    """

    label: str
    key: ApiKey | int
    version: int
    body: ApiMessage | bytes
    on: str = MAIN
    isAnswered: bool = True
    own: str | None = None
    isRecorded: bool = True
    clientId: str | None = "oracle"


class Receive(NamedTuple):
    """Wait for the answer to the oldest request of a connection that has not been read."""

    label: str
    on: str
    own: str | None = None


class Until(NamedTuple):
    """
    Repeat a request until its answer is C{done}, since Apache applies changes a moment after it
    answered; the last answer is recorded if the request is.
    """

    ask: Ask
    done: Callable[[Any], bool]


class Raw(NamedTuple):
    """
    Send bytes as they are, and note whether the broker answers or closes. The connection is new,
    and is closed afterwards.

    @ivar data: size field included; its correlation id is 1.
    @ivar key: of the request whose answer is expected, with its version.
    """

    label: str
    data: bytes
    key: ApiKey = ApiKey.API_VERSIONS
    version: int = 0
    on: str = "raw"
    own: str | None = None


class Token(NamedTuple):
    """
    Send bytes of SASL with their size and no header, as clients do after a SaslHandshake of version
    0, and wait for the broker's.
    """

    label: str
    data: bytes
    on: str = MAIN


class Close(NamedTuple):
    """Close a connection."""

    on: str = MAIN


Step = Ask | Receive | Until | Raw | Token | Close
Steps = Generator[Step, Any, Any]


class Scenario(NamedTuple):
    """
    @ivar name: of the file with its answers; its topics and groups begin with it.
    @ivar settings: of the broker, in Kafka's words, beside L{SETTINGS}.
    @ivar login: the SASL/PLAIN token with which the scenario's first request, for the number of the
        node, gets in; empty where there is no SASL.
    @ivar isAlone: its answers show what other scenarios leave behind: it is recorded from a broker
        that has seen none.
    """

    name: str
    run: Callable[[Setting], Steps]
    settings: Sequence[tuple[str, str]] = ()
    login: bytes = b""
    isAlone: bool = False


SETTINGS = (
    ("group.initial.rebalance.delay.ms", "0"),
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
)
"""Of every broker that takes part."""

REGISTERED: dict[str, Scenario] = {}


def scenario(
    *settings: tuple[str, str],
    login: bytes = b"",
    isAlone: bool = False,
) -> Callable[[Callable[[Setting], Steps]], Callable[[Setting], Steps]]:
    """Register a generator function: C{offsetsByTime} is the scenario C{offsets-by-time}."""

    def register(run: Callable[[Setting], Steps]) -> Callable[[Setting], Steps]:
        name = re.sub("(?=[A-Z])", "-", run.__name__).lower()
        assert name not in REGISTERED, name
        REGISTERED[name] = Scenario(name, run, settings, login, isAlone)
        return run

    return register
