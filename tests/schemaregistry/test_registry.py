"""
Tests for L{pylogbroker.schemaregistry.registry}, over a real broker.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock

from pylogbroker.errors import InvalidSchemaError, RegistryRefusalError
from pylogbroker.schemaregistry import registry as module
from pylogbroker.schemaregistry.registry import Registry
from pylogbroker.schemas.logrecords import ChangeEnvelope, Initialize, encodeRecord
from pylogbroker.schemas.schematext import canonicalText
from pylogbroker.testing.worker import ManualWorker
from tests.broker.manualbroker import capture
from tests.schemaregistry.registrycase import RegistryCase
from tests.schemas.schematexts import field, record

X = record("A", field("x", "int"))
XY = record("A", field("x", "int"), field("y", "int", default=0))
Z = record("A", field("z", "int"))


def asked(coroutine: Any) -> Deferred[Any]:
    """As a Deferred."""
    return Deferred.fromCoroutine(coroutine)


class RegistryTests(RegistryCase):
    """What clients want, by way of the topic."""

    async def refused(self, code: int, coroutine: Any) -> str:
        error = await self.assertFailure(asked(coroutine), RegistryRefusalError)
        self.assertEqual(error.code, code)
        return str(error)

    async def start(self, **properties: str) -> Registry:
        registry = (await self.startService(**properties)).registry
        assert isinstance(registry, Registry)
        return registry

    async def test_register(self) -> None:
        """
        A schema gets an id when it has come back from the topic; the same again is the same and
        appends nothing; what may not follow is refused.
        """
        registry = await self.start()
        self.assertEqual(await registry.register("s", X), 1)
        self.assertEqual(await registry.register("s", XY), 2)
        await registry._topicLog.refresh()
        position = registry._topicLog.position
        self.assertEqual(await registry.register("s", json.dumps(json.loads(X), indent=2)), 1)
        await registry._topicLog.refresh()
        self.assertEqual(registry._topicLog.position, position)
        self.assertIn("version 2", await self.refused(409, registry.register("s", Z)))
        await self.assertFailure(asked(registry.register("s", "nothing")), InvalidSchemaError)

    async def test_atOnce(self) -> None:
        """
        Many at once, of one subject and of several, at two registries on a topic: one id for each
        schema, no version twice, both know the same.
        """
        registries = [await self.start(), await self.start()]
        texts = [record("A", field(f"f{number}", "int", default=0)) for number in range(6)]
        answers = await gatherResults(
            [
                asked(registries[task % 2].register(f"s{task % 3}", texts[task % 6]))
                for task in range(36)
            ]
        )
        self.assertEqual(
            {
                len({answers[task] for task in range(36) if task % 6 == number})
                for number in range(6)
            },
            {1},
        )
        await gatherResults([registry._topicLog.refresh() for registry in registries])
        pictures = [
            [
                (name, number, registry.state.version(name, number))
                for name in registry.state.subjects()
                for number in registry.state.versions(name)
            ]
            for registry in registries
        ]
        self.assertEqual(pictures[0], pictures[1])
        self.assertEqual(len(pictures[0]), 6)
        self.assertEqual([registry._locks for registry in registries], [{}, {}])

    async def test_stale(self) -> None:
        """
        A schema that was judged before another one came is judged anew: it is refused if it may not
        follow that one.
        """
        registry, other = await self.start(), await self.start()
        judged: list[None] = []

        async def incompatibilities(*arguments: Any) -> list[str]:
            if not judged:
                judged.append(None)
                await other.register("s", XY)
            return await Registry.incompatibilities(registry, *arguments)

        with patch.object(registry, "incompatibilities", incompatibilities):
            self.assertIn(
                "version 1",
                await self.refused(409, registry.register("s", record("A", field("z", "int")))),
            )

    async def test_neverQuickEnough(self) -> None:
        """Whoever is never quick enough is told so, in the end."""
        registry = await self.start()
        with patch.object(module, "ATTEMPT_COUNT_MAX", 0):
            self.assertIn(
                "other changes of s came first",
                await self.refused(50001, registry.register("s", X)),
            )

    async def test_otherRegistrysId(self) -> None:
        """
        An id that another registry has just given out is known here at once, though the topic is
        read only now and then.
        """
        registry, other = await self.start(), await self.start(poll_interval_ms="100000")
        schemaId = await registry.register("s", X)
        self.assertEqual(json.loads(await other.schema(schemaId)), json.loads(X))
        await self.refused(40403, other.schema(99))

    async def test_levels(self) -> None:
        """
        Rules are set and taken away, of a subject or of all; one that was never set cannot be taken
        away.
        """
        registry = await self.start()
        self.assertEqual(await registry.setLevel("", "NONE"), "NONE")
        self.assertEqual(await registry.setLevel("s", "FULL"), "FULL")
        self.assertEqual((registry.state.level(), registry.state.level("s")), ("NONE", "FULL"))
        self.assertEqual(await registry.setLevel("s", ""), "FULL")
        await self.refused(40401, registry.setLevel("s", ""))

    async def test_delete(self) -> None:
        """Versions and subjects are deleted, in two steps."""
        registry = await self.start()
        await registry.register("s", X)
        await registry.register("s", XY)
        self.assertEqual(await registry.deleteVersion("s", 1, False), 1)
        self.assertEqual(await registry.deleteSubject("s", False), [2])
        await self.refused(40404, registry.deleteSubject("s", False))
        self.assertEqual(await registry.deleteSubject("s", True), [1, 2])

    async def test_noRoom(self) -> None:
        """There is a most of everything that is kept."""
        registry = await self.start()
        await registry.register("s", X)
        with patch.object(module, "VERSION_COUNT_MAX", 1):
            self.assertIn(
                "The registry is full", await self.refused(42205, registry.register("s", XY))
            )
            await registry.deleteVersion("s", 1, False)
            self.assertIn(
                "permanently deleted", await self.refused(42205, registry.register("s", XY))
            )
            await registry.deleteVersion("s", 1, True)
            self.assertEqual(await registry.register("s", X), 1)
        with patch.object(module, "TEXTS_SIZE_MAX", 100):
            reason = await self.refused(42205, registry.register("t", XY))
            self.assertIn("100 characters of schemas", reason)
        wide = canonicalText('{"type":"int","doc":"%s"}' % ("\N{SNOWMAN}" * 100))
        size = registry.state.textsSize + len(wide)
        self.assertGreater(len(wide.encode()), len(wide))
        with patch.object(module, "TEXTS_SIZE_MAX", size - 1):
            await self.refused(42205, registry.register("wide", wide))
        with patch.object(module, "TEXTS_SIZE_MAX", size):
            await registry.register("wide", wide)
        with patch.object(module, "SUBJECT_COUNT_MAX", 1):
            await self.refused(42205, registry.setLevel("t", "NONE"))

    async def test_late(self) -> None:
        """A change that does not come back in time is refused, and says what may be the reason."""
        registry = await self.start(timeout_ms="300")
        await self.broker.stop()
        await self.startBroker(
            **{"log.flush.interval": "100000", "log.default.flush.scheduler.interval.ms": "1000000"}
        )
        await registry._topicLog.refresh()
        self.assertIn(
            "topic.flush.intervals.ms", await self.refused(50002, registry.register("s", X))
        )
        await self.broker.stop()
        await self.eventually(lambda: registry._topicLog.problem is not None)
        await self.refused(50002, registry.register("t", X))
        await self.refused(50002, registry.schema(77))
        await self.startBroker()

    async def test_cut(self) -> None:
        """
        When the topic is cut while it runs, nothing is changed any more, and who waits is told;
        what is known is still told.
        """
        service = await self.startService(check_interval_ms="1")
        registry = service.registry
        for number in range(30):
            await registry.register(f"s{number}", X)
        await self.broker.stop()
        self.cut()
        changing = asked(
            registry.register("late", XY)
        )  # it is not flushed: nobody sees it before the cut is seen
        await self.startBroker(
            **{"log.flush.interval": "100000", "log.default.flush.scheduler.interval.ms": "1000000"}
        )
        error = await self.assertFailure(changing, RegistryRefusalError)
        self.assertIn("not at 0", str(error))
        self.assertIn(
            "Nothing can be changed", await self.refused(50001, registry.register("later", XY))
        )
        self.assertEqual(
            (await registry.schema(1), registry.isReady), (registry.state.schema(1), True)
        )
        self.assertIn("not at 0", await self.refused(50001, registry.schema(77)))

    async def test_begins(self) -> None:
        """
        An empty topic gets a first entry, and two registries that begin it at once make one
        registry of it; rubbish behind it is skipped and counted.
        """
        services = [self.makeService(), self.makeService()]
        for service in services:
            service.startService()
        await self.eventually(lambda: all(service.registry.isReady for service in services))
        await self.produce(
            "_schemas", b"rubbish", encodeRecord(ChangeEnvelope("x", Initialize())), b"\xff\xfe"
        )
        self.assertEqual(await services[0].registry.register("s", X), 1)
        second = services[1].registry
        assert isinstance(second, Registry)
        await second._topicLog.refresh()
        self.assertEqual(
            [
                (service.registry.skippedCount, service.registry.state.versions("s"))
                for service in services
            ],
            [(2, [1])] * 2,
        )
        self.flushLoggedErrors()

    async def test_stoppedBeforeItBegan(self) -> None:
        """
        When it is stopped before its first entry has come back, it does not go on sending it:
        nothing is left on the clock.
        """
        await self.broker.stop()
        await self.startBroker(
            **{"log.flush.interval": "100000", "log.default.flush.scheduler.interval.ms": "1000000"}
        )
        lines = capture(self)
        clock = Clock()
        log = self.makeLog("_schemas", clock=clock)
        registry = Registry(clock, log, ManualWorker(), lambda: str(next(self.requests)), 1_000)
        following = Deferred.fromCoroutine(registry.follow())
        await self.eventually(lambda: registry._waiting)
        following.cancel()
        await log.close()
        await following
        self.assertEqual((clock.getDelayedCalls(), registry._waiting), ([], {}))
        self.assertEqual([line for line in lines() if "entry" in line], [])
