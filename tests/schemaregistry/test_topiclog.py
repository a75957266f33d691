"""
Tests for L{pylogbroker.schemaregistry.topiclog}, over a real broker.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock, deferLater

from pylogbroker.errors import ClosedError, InvalidRegistryTopicError
from pylogbroker.schemaregistry.topiclog import FETCH_SIZE, TopicLog
from tests.schemaregistry.registrycase import RegistryCase


class TopicLogTests(RegistryCase):
    """Reading everything, and appending."""

    def follow(self, log: TopicLog) -> tuple[list[bytes], list[None], Deferred[None]]:
        payloads: list[bytes] = []
        caughtUp: list[None] = []
        following = Deferred.fromCoroutine(
            log.follow(
                lambda payload, offset: payloads.append(payload), lambda: caughtUp.append(None)
            )
        )

        def stop() -> Any:
            following.cancel()
            return following.addErrback(
                lambda failure: failure.trap(CancelledError, InvalidRegistryTopicError)
            )

        self.addCleanup(stop)
        return payloads, caughtUp, following

    async def test_reads(self) -> None:
        """
        Everything from the first entry on, compressed or not, in order; then what comes. That it
        has caught up is told once.
        """
        await self.produce("log", *(b"%d" % number for number in range(1_000)))
        payloads, caughtUp, _ = self.follow(self.makeLog())
        await self.eventually(lambda: len(payloads) == 1_000)
        await self.produce("log", b"1000", b"1001")
        await self.eventually(lambda: len(payloads) == 1_002)
        self.assertEqual(
            (payloads, caughtUp), ([b"%d" % number for number in range(1_002)], [None])
        )

    async def test_newTopic(self) -> None:
        """
        A topic that nobody has written to is read to its end, and is there when the first entry is
        appended.
        """
        log = self.makeLog()
        payloads, caughtUp, _ = self.follow(log)
        await self.eventually(lambda: caughtUp)
        await log.append(b"first")
        await self.eventually(lambda: payloads == [b"first"])

    async def test_large(self) -> None:
        """An entry that is larger than a fetch is read all the same."""
        await self.broker.stop()
        await self.startBroker(**{"max.message.size": "4000000"})
        large = b"x" * (2 * FETCH_SIZE)
        producerLimit = self.makeLog()
        producerLimit._producer._payloadSizeMax = 4_000_000
        await producerLimit.append(large)
        payloads, _, _ = self.follow(self.makeLog())
        await self.eventually(lambda: payloads)
        self.assertEqual(payloads, [large])

    async def test_refresh(self) -> None:
        """When it has fired, everything that was visible when it was asked for has been applied."""
        log = self.makeLog()
        log._pollMs = 1_000_000
        payloads, caughtUp, _ = self.follow(log)
        await self.eventually(lambda: caughtUp)
        await self.produce("log", b"a")
        await log.refresh()
        self.assertEqual(payloads, [b"a"])
        asking = log.refresh()
        asking.cancel()
        await self.assertFailure(asking, CancelledError)
        await log.refresh()

    async def test_refreshCancelled(self) -> None:
        """
        What is asked while the broker is away, and given up, is not kept; nor does it matter to
        others, whenever it is given up.
        """
        clock = Clock()
        log = self.makeLog(clock=clock)
        _, caughtUp, _ = self.follow(log)
        await self.eventually(lambda: caughtUp)
        late, other = log.refresh(), log.refresh()
        await self.eventually(lambda: not log._asking)
        late.cancel()  # its answer is on its way
        clock.advance(0)
        await self.assertFailure(late, CancelledError)
        await other
        await self.broker.stop()
        given, kept = log.refresh(), log.refresh()
        await self.eventually(lambda: log.problem is not None)
        given.cancel()
        await self.assertFailure(given, CancelledError)
        self.assertEqual(list(log._asking), [kept])
        kept.cancel()
        await self.assertFailure(kept, CancelledError)
        await self.startBroker()

    async def test_refreshEnded(self) -> None:
        """When reading has ended, who asked is told why, and who asks is told at once."""
        log = self.makeLog(clock=Clock())
        _, caughtUp, following = self.follow(log)
        await self.eventually(lambda: caughtUp)
        asking = log.refresh()
        following.cancel()
        for each in (asking, log.refresh()):
            self.assertIn(
                "log is no longer read",
                self.failureResultOf(each, ClosedError).getErrorMessage(),
            )

    async def test_brokerAway(self) -> None:
        """
        While the broker is away reading and appending are tried again; then they go on, and say
        that all is well.
        """
        log = self.makeLog()
        payloads, caughtUp, _ = self.follow(log)
        await self.eventually(lambda: caughtUp)
        await self.broker.stop()
        await self.eventually(lambda: log.problem is not None)
        appending = Deferred.fromCoroutine(log.append(b"a"))
        await self.startBroker()
        await appending
        await self.eventually(lambda: payloads[:1] == [b"a"] and log.problem is None)

    async def test_cut(self) -> None:
        """
        A log that begins behind 0 is refused, with what to do; also one that was cut while it was
        read.
        """
        for number in range(3):
            await self.produce("log", b"%d" % number * 3_000)
        log = self.makeLog(checkIntervalMs=1)
        _payloads, caughtUp, following = self.follow(log)
        await self.eventually(lambda: caughtUp)
        await self.broker.stop()
        self.cut("log")
        await self.startBroker()
        error: Any = await self.assertFailure(
            cast("Deferred[Any]", following), InvalidRegistryTopicError
        )
        self.assertRegex(
            str(error),
            r"log begins at \d+, not at 0: .* topic\.log\.retention\.hours=log:2147483647",
        )
        _, _, again = self.follow(self.makeLog())
        await self.assertFailure(again, InvalidRegistryTopicError)

    async def test_madeAnew(self) -> None:
        """A topic that was thrown away and made anew is not taken for the old one."""
        await self.produce("log", b"x" * 1_000)
        log = self.makeLog()
        _payloads, caughtUp, following = self.follow(log)
        await self.eventually(lambda: caughtUp)
        await self.broker.stop()
        self.cut("log")
        await self.startBroker()
        await self.produce("log", b"y")
        error: Any = await self.assertFailure(
            cast("Deferred[Any]", following), InvalidRegistryTopicError
        )
        self.assertIn("where reading continues", str(error))
        again = self.failureResultOf(log.refresh(), InvalidRegistryTopicError).value
        self.assertEqual((str(again), again is error), (str(error), False))

    async def test_closed(self) -> None:
        """What was not sent when it is closed is given up."""
        log = self.makeLog()
        await self.broker.stop()
        appending = Deferred.fromCoroutine(log.append(b"a"))
        await deferLater(reactor, 0)
        appending.cancel()
        await self.assertFailure(appending, CancelledError)
        await log.close()
        await self.startBroker()
