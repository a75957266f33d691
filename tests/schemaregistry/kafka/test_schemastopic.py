"""
Tests for L{pylogbroker.schemaregistry.kafka.schemastopic} and what the registry makes of it: topics
that can be used or not, other writers, brokers that are away.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.client.kafka.admin.client import (
    AdminClient,
    AlterConfigOperation,
    ConfigResource,
    ResourceKind,
    checkAll,
)
from pylogbroker.errors import ClosedError, RegistryRefusalError, TimedOutError
from pylogbroker.schemaregistry import registry as limits
from pylogbroker.schemaregistry.kafka import registry as module
from pylogbroker.schemaregistry.kafka.registry import KafkaRegistry
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.broker.manualbroker import capture
from tests.schemaregistry.kafka.kafkaregistrycase import TOPIC, KafkaRegistryCase
from tests.schemaregistry.kafka.test_takeover import CLICK, schemaKey, schemaValue

SCHEMA = {"schema": CLICK}
PATH = "/subjects/s/versions"
RESOURCE = ConfigResource(ResourceKind.TOPIC, TOPIC)


class TopicTests(KafkaRegistryCase):
    """What the topic must be."""

    async def cannotStart(self, **properties: str) -> str:
        """The reason that is logged."""
        lines = capture(self)
        service = self.makeService(**properties)
        service.startService()
        await self.eventually(lambda: any("cannot start" in line for line in lines()))
        self.assertFalse(service.registry.isReady)
        return next(line for line in lines() if "cannot start" in line)

    async def setPolicy(self, admin: AdminClient, policy: str) -> None:
        change = {"cleanup.policy": (AlterConfigOperation.SET, policy)}
        checkAll(await admin.incrementalAlterConfigs({RESOURCE: change}))

    async def test_creates(self) -> None:
        """A missing topic is created with one partition, compacted; fewer replicas are logged."""
        lines = capture(self)
        await self.startService(topic="mine")
        async with AdminClient(reactor, self.access()) as admin:
            found = checkAll(await admin.describeTopics(["mine"]))["mine"]
            resource = ConfigResource(ResourceKind.TOPIC, "mine")
            configs = checkAll(await admin.describeConfigs([resource]))[resource]
        self.assertEqual(len(found.partitions), 1)
        self.assertEqual(configs["cleanup.policy"].value, "compact")
        self.assertTrue(any("created with 1 replicas" in line for line in lines()))

    async def test_notCompacted(self) -> None:
        """A topic that is not compacted is refused, with what it has and must have."""
        await self.createTopic(cleanup_policy="delete")
        self.assertIn("must have cleanup.policy=compact", await self.cannotStart())

    async def test_severalPartitions(self) -> None:
        """A topic with several partitions is refused."""
        await self.createTopic(2)
        self.assertIn("has 2 partitions", await self.cannotStart())

    async def test_changedLater(self) -> None:
        """
        A topic that is not compacted any more, or was deleted, while the registry runs: it answers
        reads, refuses changes with the reason, and leaves the group, so that another may lead.
        """
        lines = capture(self)
        service = await self.startService(check_interval_ms="50")
        await self.asked(service, "POST", PATH, SCHEMA)
        async with AdminClient(reactor, self.access()) as admin:
            await self.setPolicy(admin, "delete")
            await self.eventually(
                lambda: any("Nothing can be registered any more" in line for line in lines())
            )
            reason = await self.refused(50001, service, "POST", "/subjects/t/versions", SCHEMA)
            self.assertIn("cleanup.policy=delete", reason)
            self.assertEqual(await self.asked(service, "GET", "/subjects"), ["s"])
            self.assertIsNone(self.leaderOf(service))
            self.assertIn("any more", await self.refused(50001, service, "GET", "/schemas/ids/9"))
            await self.setPolicy(admin, "compact")
            other = await self.startService(check_interval_ms="50")
            checkAll(await admin.deleteTopics([TOPIC]))
            await self.eventually(lambda: self.leaderOf(other) is None)
            self.assertIn("was deleted", await self.refused(50001, other, "DELETE", "/subjects/s"))

    async def test_deletedRecords(self) -> None:
        """Records that were deleted from the beginning are warned of; the rest is served."""
        await self.createTopic(cleanup_policy="delete")
        await self.write([(schemaKey(s, 1), schemaValue(s, 1, 1, CLICK)) for s in ("a", "b")])
        async with AdminClient(reactor, self.access()) as admin:
            checkAll(await admin.deleteRecords({TopicPartition(TOPIC, 0): 1}))
            await self.setPolicy(admin, "compact")
        lines = capture(self)
        service = await self.startService()
        self.assertEqual(await self.asked(service, "GET", "/subjects"), ["b"])
        self.assertTrue(any("_schemas begins at 1" in line for line in lines()))

    async def test_brokerAway(self) -> None:
        """
        A registry waits for its broker; while that is away later, reads are answered, and changes
        are refused in bounded time.
        """
        directory, port = self.mktemp(), self.broker.port
        service = self.makeService(timeout_ms="2000")
        await self.broker.stop()
        service.startService()
        await self.refused(50301, service, "GET", "/subjects")
        self.broker = LocalBroker(reactor, {"port": str(port)}, directory)
        await self.broker.start()
        await self.eventually(lambda: self.leaderOf(service) is not None)
        await self.asked(service, "POST", PATH, SCHEMA)
        await self.broker.stop()
        self.assertEqual(await self.asked(service, "GET", "/schemas/ids/1"), SCHEMA)
        for method, path, body in (
            ("POST", "/subjects/t/versions", SCHEMA),
            ("GET", "/schemas/ids/9", None),
        ):
            status, answer = await self.ask(service, method, path, body)
            self.assertEqual(status, 500, answer)
        self.broker = LocalBroker(reactor, {"port": str(port)}, directory)
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        await self.eventually(lambda: self.leaderOf(service) is not None)
        status, answer = 0, {}
        for _attempt in range(100):
            body = {"schema": '"int"'}
            status, answer = await self.ask(service, "POST", "/subjects/u/versions", body)
            if status == 200:
                break
        self.assertIn(answer.get("id"), (2, 3))


class OtherWriterTests(KafkaRegistryCase):
    """A registry that writes although it does not lead."""

    async def registry(self) -> KafkaRegistry:
        return self.registryOf(await self.startService())

    async def test_readFirst(self) -> None:
        """What was written before a term is read before the first record of it is decided."""
        service = await self.startService()
        await self.write([(schemaKey("s", 1), schemaValue("s", 1, 40, CLICK))])
        answer = await self.asked(service, "POST", "/subjects/t/versions", {"schema": '"int"'})
        self.assertEqual(answer, {"id": 41})

    async def test_decidedAnew(self) -> None:
        """
        A record of another registry that comes while a schema is compared: the schema is compared
        again, with that one, too.
        """
        registry = await self.registry()
        await registry.register("s", CLICK)
        compared: list[Any] = []
        other = '{"type":"record","name":"Other","fields":[]}'

        async def incompatibilities(text: str, earlier: Any, level: str) -> list[str]:
            compared.append([number for number, _text in earlier])
            if len(compared) == 1:
                await self.write([(schemaKey("s", 2), schemaValue("s", 2, 2, other))])
                await self.eventually(lambda: registry.state.idMax == 2)
            return []

        with patch.object(registry, "incompatibilities", incompatibilities):
            self.assertEqual(await registry.register("s", '"int"'), 3)
        self.assertEqual(compared, [[1], [2]])
        self.assertEqual(registry.state.versions("s"), [1, 2, 3])

    async def overtaken(self, *records: tuple[str, str | None]) -> KafkaRegistry:
        """A registry whose next record finds these in the topic, although it has decided."""
        registry = await self.registry()
        await registry.register("s", CLICK)
        topic = registry._topic
        write, left = topic.write, list(records)

        async def late(given: Any) -> list[int]:
            if left:
                await self.write(left)
                left.clear()
            return await write(given)

        topic.write = late  # type: ignore[method-assign, assignment]
        return registry

    async def test_idTaken(self) -> None:
        """
        The id of a new schema has gone to another schema meanwhile: the record is skipped, its key
        gets its right value again, and the schema another id.
        """
        registry = await self.overtaken((schemaKey("t", 1), schemaValue("t", 1, 2, '"bytes"')))
        start = await self.end()
        self.assertEqual(await registry.register("u", '"int"'), 3)
        self.assertEqual(
            await self.records(start),
            [
                (schemaKey("t", 1), schemaValue("t", 1, 2, '"bytes"')),
                (schemaKey("u", 1), schemaValue("u", 1, 2, '"int"')),
                (schemaKey("u", 1), None),
                (schemaKey("u", 1), schemaValue("u", 1, 3, '"int"')),
            ],
        )
        self.assertEqual(registry.state.version("u", 1).schemaId, 3)

    async def test_versionTaken(self) -> None:
        """
        The version of a new schema has gone to another schema meanwhile, and its id, too: the other
        one stays, and the new schema becomes the next version.
        """
        other = '{"type":"record","name":"Other","fields":[]}'
        registry = await self.overtaken((schemaKey("u", 1), schemaValue("u", 1, 2, other)))
        start = await self.end()
        with patch.object(registry.state, "level", lambda subject="": "NONE"):
            self.assertEqual(await registry.register("u", '"int"'), 3)
        self.assertEqual(
            (await self.records(start))[2:],
            [
                (schemaKey("u", 1), schemaValue("u", 1, 2, other)),
                (schemaKey("u", 2), schemaValue("u", 2, 3, '"int"')),
            ],
        )

    async def test_repairs(self) -> None:
        """
        A record of another registry that gives an id another schema has no effect, and the registry
        that leads writes the right value of its key again: a compaction cannot keep the wrong one.
        """
        registry = await self.registry()
        await registry.register("s", CLICK)
        start = await self.end()
        wrong = (schemaKey("s", 1), schemaValue("s", 1, 1, '"int"'))
        await self.write([wrong])
        right = (schemaKey("s", 1), schemaValue("s", 1, 1, CLICK))

        async def isRepaired() -> bool:
            return await self.records(start) == [wrong, right]

        for _attempt in range(100):
            if await isRepaired():
                break
        else:
            self.fail("not repaired")
        again = await self.startService()
        self.assertEqual(self.registryOf(again).state.schema(1), CLICK)
        self.assertEqual(self.registryOf(again)._repairs, {})

    async def test_leadershipLost(self) -> None:
        """A change during which another registry became the leader is not reported as done."""
        registry = await self.registry()
        topic, leadership = registry._topic, registry.leadership
        assert leadership is not None
        write = topic.write

        async def losing(given: Any) -> list[int]:
            offsets = await write(given)
            if given[0].value is not None:
                await leadership.lose()
            return offsets

        topic.write = losing  # type: ignore[method-assign, assignment]
        error: Any = await self.assertFailure(
            Deferred.fromCoroutine(registry.register("s", CLICK)), RegistryRefusalError
        )
        self.assertEqual(error.code, 50004)
        self.assertEqual(len(await self.records()), 1)
        self.assertEqual(json.loads((await self.records())[0][1] or "")["id"], 1)


class FailureTests(KafkaRegistryCase):
    """Brokers that refuse."""

    async def test_whileStarting(self) -> None:
        """Whatever a broker refuses for a while does not keep a registry from starting."""
        for request, error in (
            ("CreateTopics", "TOPIC_ALREADY_EXISTS"),
            ("CreateTopics", "NOT_CONTROLLER"),
            ("DescribeConfigs", "UNKNOWN_SERVER_ERROR"),
            ("Metadata", "TOPIC_AUTHORIZATION_FAILED"),
            ("ListOffsets", "UNKNOWN_SERVER_ERROR"),
            ("Fetch", "UNKNOWN_SERVER_ERROR"),
            ("JoinGroup", "GROUP_AUTHORIZATION_FAILED"),
            ("SyncGroup", "UNKNOWN_SERVER_ERROR"),
        ):
            self.broker.injectError(request, error)
        service = await self.startService()
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})

    async def test_notCreated(self) -> None:
        """A topic that may not be created ends the start."""
        lines = capture(self)
        self.broker.injectError("CreateTopics", "TOPIC_AUTHORIZATION_FAILED")
        self.makeService().startService()
        await self.eventually(lambda: any("cannot be created" in line for line in lines()))

    async def test_notInTheGroup(self) -> None:
        """
        A registry that may not join the group says so, answers reads, and refuses changes in time.
        """
        lines = capture(self)
        self.broker.injectError("JoinGroup", "GROUP_AUTHORIZATION_FAILED", count=None)
        service = self.makeService(timeout_ms="300")
        service.startService()
        await self.eventually(lambda: any("cannot take part in the election" in x for x in lines()))
        self.assertEqual(await self.asked(service, "GET", "/subjects"), [])
        reason = await self.refused(50002, service, "POST", PATH, SCHEMA)
        self.assertIn("an election is under way", reason)

    async def test_notStored(self) -> None:
        """
        A record that the broker refuses is not reported as stored; the next change reads the topic
        to its end first, with another producer if the first one cannot go on.
        """
        service = await self.startService()
        for error in ("INVALID_RECORD", "CLUSTER_AUTHORIZATION_FAILED"):
            self.broker.injectError("Produce", error)
            reason = await self.refused(50001, service, "POST", PATH, SCHEMA)
            self.assertIn("was not stored", reason)
        end = await self.end()
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})
        self.assertEqual((await self.end(), len(await self.records(end))), (end + 2, 1))

    async def test_lostAnswer(self) -> None:
        """A record whose answer is lost is stored once."""
        service = await self.startService()
        await self.asked(service, "PUT", "/config", {"compatibility": "NONE"})
        self.broker.injectDisconnect("Produce", isHandled=True)
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})
        self.assertEqual(len(await self.records()), 2)

    async def test_tooLarge(self) -> None:
        """A record that would become too large is refused."""
        config = '{"keytype":"CONFIG","subject":"s","magic":0}'
        await self.createTopic()
        await self.write([(config, '{"later":"%s"}' % ("x" * 949_970))])
        service = await self.startService()
        body = {"compatibility": "FULL"}
        self.assertIn("are allowed", await self.refused(42205, service, "PUT", "/config/s", body))

    async def test_full(self) -> None:
        """A subject gets a mode only while there is room for one more; a known one changes it."""
        registry = self.registryOf(await self.startService())
        with patch.object(limits, "SUBJECT_COUNT_MAX", 1):
            await registry.setMode("a", "READONLY")
            error: Any = await self.assertFailure(
                Deferred.fromCoroutine(registry.setMode("b", "READONLY")), RegistryRefusalError
            )
            self.assertIn("The registry is full", str(error))
            self.assertEqual(await registry.setMode("a", "READWRITE"), "READWRITE")
            self.assertEqual(await registry.setMode("", "READONLY"), "READONLY")

    async def test_neverFirst(self) -> None:
        """A change is refused when other registries come first again and again."""
        registry = self.registryOf(await self.startService())
        with patch.object(module, "ATTEMPT_COUNT_MAX", 0):
            error: Any = await self.assertFailure(
                Deferred.fromCoroutine(registry.register("s", CLICK)), RegistryRefusalError
            )
        self.assertIn("other registries wrote", str(error))

    async def test_waiting(self) -> None:
        """A caller that waits for a record can stop waiting, and learns of the end."""
        service = await self.startService()
        topic = self.registryOf(service)._topic
        cancelled = topic.readTo(1_000)
        cancelled.cancel()
        await self.assertFailure(cancelled, CancelledError)
        waiting = topic.readTo(1_000)
        stopping = service.stopService()
        await self.assertFailure(waiting, ClosedError)
        await stopping
        await self.assertFailure(topic.readTo(1_000), ClosedError)
        await self.assertFailure(Deferred.fromCoroutine(topic.readToEnd()), ClosedError)

    async def test_unknownOffset(self) -> None:
        """
        When the broker does not say where a record is, the topic is read to a later one before the
        change is answered.
        """
        service = await self.startService()
        topic = self.registryOf(service)._topic
        write = topic.write

        async def silent(given: Any) -> list[int]:
            offsets = await write(given)
            return [-1] if given[0].value is not None else offsets

        topic.write = silent  # type: ignore[method-assign, assignment]
        end = await self.end()
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})
        self.assertEqual(await self.end(), end + 3)

    async def test_unknownOffsets(self) -> None:
        """
        When the broker does not say where a NOOP is, either, the topic is read to its end before a
        change is decided, and again before it is answered. If the end is not known, the change is
        refused.
        """
        service = await self.startService()
        topic = self.registryOf(service)._topic
        write = topic.write
        foreign = [(schemaKey("t", 1), schemaValue("t", 1, 40, '"bytes"'))]
        left = list(foreign)

        async def silent(given: Any) -> list[int]:
            if left:
                await self.write(left)
                left.clear()
            await write(given)
            return [-1] * len(given)

        topic.write = silent  # type: ignore[method-assign, assignment]
        self.broker.injectDelay("Fetch", 200)  # reading lags behind writing
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 41})
        right = (schemaKey("s", 1), schemaValue("s", 1, 41, CLICK))
        self.assertEqual(await self.records(), [*foreign, right])

        async def unknown(_places: Any) -> Any:
            raise TimedOutError("no end")

        with patch.object(topic._consumer, "endOffsets", unknown):
            reason = await self.refused(50001, service, "PUT", "/config", {"compatibility": "NONE"})
        self.assertIn("may still take effect: no end", reason)

    async def test_notRepaired(self) -> None:
        """What cannot be written again at once is written before the next change."""
        lines = capture(self)
        registry = self.registryOf(await self.startService())
        await registry.register("s", CLICK)
        topic = registry._topic
        write = topic.write
        failures = [RegistryRefusalError(50001, "not now")]

        async def failing(given: Any) -> list[int]:
            if failures:
                raise failures.pop()
            return await write(given)

        topic.write = failing  # type: ignore[method-assign, assignment]
        await self.write([(schemaKey("s", 1), schemaValue("s", 1, 1, '"int"'))])
        await self.eventually(lambda: any("before the next change" in line for line in lines()))
        start = await self.end()
        await registry.register("t", CLICK)
        [repaired, _registered] = await self.records(start)
        self.assertEqual(repaired, (schemaKey("s", 1), schemaValue("s", 1, 1, CLICK)))
