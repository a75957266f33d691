"""
The clients' contract holds under faults: the gate's part of L{tests.contracts.injections}.
"""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from tests.contracts.injections import (
    BASE,
    RETRIABLE,
    SESSION_TIMEOUT_MS,
    FaultRunner,
    Injection,
    sample,
)
from tests.contracts.test_kafkaclients import ContractBroker

TIMEOUT_SECONDS = 300


class FaultCase(TestCase):
    """A broker that takes orders for faults."""

    timeout = TIMEOUT_SECONDS

    async def runner(self) -> FaultRunner:
        """What runs scenarios on it."""
        more = {"group.min.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        server = ContractBroker(self.mktemp(), more)
        self.addCleanup(server.broker.stop)
        return FaultRunner(reactor, server.broker, await server.start())


class SampleTests(FaultCase):
    """Each request of the clients, with each error that passes, and with lost connections."""

    async def test_kept(self) -> None:
        """The promise of a scenario holds with every one of them."""
        runner = await self.runner()
        requests = {scenario: await runner.requests(scenario) for scenario in BASE}
        sent = {key for found in requests.values() for key in found}
        # Our broker has transaction.version 2; and no scenario moves leaders.
        self.assertEqual(
            {key.name for key in RETRIABLE.keys() - sent},
            {"ADD_OFFSETS_TO_TXN", "ADD_PARTITIONS_TO_TXN", "OFFSET_FOR_LEADER_EPOCH"},
        )
        broken, metCount = [], 0
        for each in sample(requests):
            try:
                metCount += await runner.inject(each)
            except Exception as error:  # all of them are told
                broken.append(f"{each}: {error!r}")
        self.assertEqual(broken, [])
        self.assertGreater(metCount, 150)


class RunnerTests(FaultCase):
    """What runs the scenarios."""

    async def test_broken(self) -> None:
        """A broken promise is told, and the fault is gone behind it."""
        runner = await self.runner()
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        failing = Injection("times", ApiKey.PRODUCE, error, False, 1)
        with self.assertRaises(ResponseError):
            await runner.inject(failing)
        self.assertEqual(str(failing), "times: TOPIC_AUTHORIZATION_FAILED at Produce 1")
        self.assertGreater((await runner.requests("times"))[ApiKey.PRODUCE], 0)

    async def test_unmet(self) -> None:
        """A fault that no request meets is told."""
        runner = await self.runner()
        self.assertFalse(await runner.inject(Injection("times", ApiKey.JOIN_GROUP, None, True, 1)))
        self.assertTrue(await runner.inject(Injection("times", ApiKey.PRODUCE, None, True, 2)))
