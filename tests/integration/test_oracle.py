"""
Kafka's recorded answers: the broker gives the same, but for the differences that
C{tests/oracle/differences.json} states with reasons.

L{SCENARIOS} lists the scenarios of what is finished. Each scenario gets an empty broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.oracle.comparer import Rules, compareScenario
from tests.oracle.scenarios import scenarios

PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "brokerid": "1",
    "listener.dialect": "kafka",
    "log.flush.acks.all": "true",
    "log.flush.before.read": "true",
}
"""Those of Kafka's broker (C{tests.oracle.steps.SETTINGS}) that this one has, too."""

SCENARIOS = (
    "acls",
    "acls-without-authorizer",
    "alter-configs",
    "api-versions",
    "authorization",
    "authorization-of-consumer-groups",
    "authorization-of-patterns",
    "authorization-of-transactions",
    "broker-configs",
    "classic-groups",
    "client-quotas",
    "commits",
    "commits-of-members",
    "consumer-commits",
    "consumer-groups",
    "consumer-subscriptions",
    "consumers-and-classic-members",
    "create-partitions",
    "create-topics",
    "create-topics-with-configs",
    "cut-requests",
    "defaults",
    "delete-records",
    "delete-topics",
    "describe-cluster",
    "describe-configs",
    "describe-log-dirs",
    "describe-producers",
    "describe-topic-partitions",
    "downgrades-only",
    "elect-leaders",
    "fetch-ids",
    "fetch-of-compressed",
    "fetch-sessions",
    "fetch-versions",
    "find-coordinator",
    "group-configs",
    "idempotence-without-rights",
    "incremental-alter-configs",
    "init-producer-id",
    "join-errors",
    "late-members",
    "list-config-resources",
    "list-offsets",
    "listed-groups",
    "metadata",
    "metadata-without-creation",
    "offset-delete",
    "offset-for-leader-epoch",
    "partition-reassignments",
    "position-fetches",
    "produce-batches",
    "produce-codecs",
    "produce-to-internal-topics",
    "produce-to-too-few-replicas",
    "produce-to-topics",
    "produce-unreadable-records",
    "produce-versions",
    "protocols-of-groups",
    "random-bytes",
    "refused-acls",
    "refused-upgrades",
    "sasl-again",
    "sasl-lifetimes",
    "sasl-mechanisms",
    "sasl-on-plaintext",
    "sasl-order",
    "sasl-plain",
    "sasl-scram",
    "scram-credentials",
    "sequences",
    "sequences-at-their-end",
    "static-configs",
    "static-consumers",
    "static-members",
    "static-members-of-both-protocols",
    "strange-frames",
    "throttled-clients",
    "transaction-lists",
    "transactions",
    "unknown-requests",
    "upgraded-groups",
    "upgrades-only",
    "write-txn-markers",
)


CHECKED = ("produce-batches", "produce-unreadable-records")
"""Scenarios of which C{log.check.records} leaves nothing different."""

OFFSET_TAKEN = "offset of a record 1"
"""The one batch of them that Apache takes and this broker refuses, with every record checked."""


class OracleTests(SynchronousTestCase):
    """The scenarios, one after the other."""

    def setUp(self) -> None:
        self.brokers: dict[Sequence[tuple[str, str]], BackgroundBroker] = {}

    def broker(self, settings: Sequence[tuple[str, str]]) -> BackgroundBroker:
        """An empty broker with settings of a scenario."""
        found = self.brokers.get(settings)
        if found is None:
            found = self.brokers[settings] = BackgroundBroker({**PROPERTIES, **dict(settings)})
            self.addCleanup(found.close)
            return found.start()
        found.reset()
        return found

    def test_answersAreKafkas(self) -> None:
        """No answer differs but as the rules allow, and no rule is left over."""
        rules = Rules.load()
        unexpected = []
        for name in SCENARIOS:
            scenario = scenarios()[name]
            broker = self.broker(scenario.settings)
            found = compareScenario(broker.host, broker.port, scenario)
            unexpected += [str(each) for each in found if not rules.allow(each)]
        self.assertEqual("", "\n".join(unexpected))
        mine = {None, *SCENARIOS}
        self.assertEqual([], [rule for rule in rules.unused() if rule.get("scenario") in mine])

    def test_checkedRecords(self) -> None:
        """Where every record is checked, as by Apache, the answers are Apache's without a rule."""
        found = []
        for name in CHECKED:
            broker = self.broker((("log.check.records", "true"),))
            found += compareScenario(broker.host, broker.port, scenarios()[name])
        self.assertEqual([], [str(each) for each in found if each.label != OFFSET_TAKEN])
        codes = [each.ours for each in found if each.path.endswith(".errorCode")]
        self.assertEqual([ErrorCode.INVALID_RECORD] * 3, codes)
