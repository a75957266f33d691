"""
Clients that must not notice anything of what is thrown at the port: each asks in rounds, on a
connection of its own, and must be answered as if it were alone.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time

from pylogbroker.console.service import PAGE
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from pylogbroker.records.messageset import MessageSet, encodeMessage
from tests.fuzz.asking import Caller
from tests.fuzz.figures import Figures
from tests.fuzz.livebroker import ANSWER_SECONDS_MAX, LiveBroker

RSS_SIZE_MAX = 192 << 20
"""
Bytes of resident memory that the broker may ever have: its 60 MiB at the start, and what the
properties of the run allow it.
"""

PROBE_COUNT = 24
PROBE_TOPIC = "probe"
WATCHED_TOPIC = "watched"
READ_BACK_SIZE = 1 << 16
PROBES = [encodeMessage(b"probe %06d" % index) for index in range(PROBE_COUNT)]
PROBE_SIZE = len(PROBES[0])


class Watcher(threading.Thread):
    """
    The client. One that ends early says so by a fault.
    """

    pauseSeconds = 0.005

    def __init__(self, broker: LiveBroker, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._figures = figures
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                self.round(self._figures.watchCount)
                self._figures.watchCount += 1
                self._figures.watchSecondsMax = max(
                    self._figures.watchSecondsMax, time.monotonic() - began
                )
                self._figures.rssSize = rss = self._broker.memory("VmRSS")
                if rss > RSS_SIZE_MAX:
                    raise AssertionError(
                        f"the broker has {rss >> 20} MiB in round {self._figures.watchCount}"
                    )
                if self._ended.wait(self.pauseSeconds):
                    break
            self.last()
        except Exception as error:
            self._figures.faults.append(
                f"the watcher, in round {self._figures.watchCount}: {error!r}"
            )
        finally:
            self.close()

    def finish(self) -> None:
        """One round more, a last look, and the end."""
        self._ended.set()
        self.join()

    def round(self, number: int) -> None:
        """Ask."""
        raise NotImplementedError

    def last(self) -> None:
        """Look back."""

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    @staticmethod
    def expect(found: object, expected: object) -> None:
        if found != expected:
            raise AssertionError(f"{found!r} instead of {expected!r}")


class LogWatcher(Watcher):
    """
    Produces, fetches and asks for offsets; in the end all that it has produced is there, in order,
    once.
    """

    def __init__(self, broker: LiveBroker, figures: Figures, caller: Caller) -> None:
        super().__init__(broker, figures)
        self._caller = caller

    def round(self, number: int) -> None:
        which, other = number % PROBE_COUNT, (7 * number + 1) % PROBE_COUNT
        data = encodeMessage(b"%08d" % number)
        answer = self._caller.ask(
            encodeProduce(WATCHED_TOPIC, 0, data)
            + encodeFetch(PROBE_TOPIC, 0, which * PROBE_SIZE, PROBE_SIZE)
        )
        self.expect(decodeFetch(answer), (0, PROBES[which]))
        answer = self._caller.ask(encodeOffsets("unknown-" + WATCHED_TOPIC, 1, -1, 10))
        self.expect(decodeOffsets(answer), (0, [0]))
        answer = self._caller.ask(
            encodeMultiFetch(
                [
                    (PROBE_TOPIC, 0, other * PROBE_SIZE, PROBE_SIZE),
                    (PROBE_TOPIC, 2, 0, 10),
                    (PROBE_TOPIC, 0, -5, 10),
                ]
            )
        )
        self.expect(decodeMultiFetch(answer), [(0, PROBES[other]), (3, b""), (1, b"")])

    def last(self) -> None:
        size = len(encodeMessage(bytes(8)))
        count = self._figures.watchCount
        self._caller.untilVisible(WATCHED_TOPIC, count * size)
        found: list[bytes] = []
        offset = 0
        while offset < count * size:
            code, data = decodeFetch(
                self._caller.ask(encodeFetch(WATCHED_TOPIC, 0, offset, READ_BACK_SIZE))
            )
            messages = list(MessageSet(data, offset).payloads())
            self.expect((code, bool(messages)), (0, True))
            found += [payload for payload, _ in messages]
            offset = messages[-1][1]
        self.expect(found == [b"%08d" % number for number in range(count)], True)

    def close(self) -> None:
        self._caller.close()


class PageWatcher(Watcher):
    """Reads a file of the page, the figures, the state and a message, over one connection."""

    pauseSeconds = 0.05

    def __init__(self, broker: LiveBroker, figures: Figures, port: int) -> None:
        super().__init__(broker, figures)
        self._page = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX)
        self._page.connect()
        self._script = (PAGE / "console.js").read_bytes()

    def _get(self, path: str) -> bytes:
        self._page.request("GET", path)
        answer = self._page.getresponse()
        body = answer.read()
        self.expect(answer.status, 200)
        if self._page.sock is None:
            raise AssertionError("the connection was not kept")
        return body

    def round(self, number: int) -> None:
        which = number % PROBE_COUNT
        self.expect(self._get("/console.js"), self._script)
        self.expect(
            b"\npylogbroker_messages_in_total %d\n" % PROBE_COUNT in self._get("/metrics"), True
        )
        state = json.loads(self._get("/api/state"))
        self.expect(
            [(topic["name"], topic["partitions"][0]["end"]) for topic in state["topics"]],
            [(PROBE_TOPIC, PROBE_COUNT * PROBE_SIZE)],
        )
        rows = json.loads(
            self._get(
                f"/api/messages?broker=0&topic={PROBE_TOPIC}&partition=0&count=1"
                f"&offset={which * PROBE_SIZE}"
            )
        )["messages"]
        self.expect([base64.b64decode(row["payload"]) for row in rows], [b"probe %06d" % which])

    def close(self) -> None:
        self._page.close()
