"""
The takeover of a C{_schemas} topic and the election of registries, on Apache Kafka 4.3.1::

    python -m tests.long.registry

These are the gate's own tests (L{tests.schemaregistry.kafka}), but for the one that restarts its
broker: the topic is created, checked, written and read on Apache's broker, whose coordinator holds
the elections. The exit status is 0 if all tests pass.
"""

from __future__ import annotations

import argparse
import sys

from twisted.trial.reporter import TreeReporter
from twisted.trial.runner import TestLoader, TrialRunner

from tests.long.telling import tell, tellStart
from tests.oracle.apachebroker import VERSION, apacheBroker, fetchKafka
from tests.schemaregistry.kafka.kafkaregistrycase import KafkaRegistryCase
from tests.schemaregistry.kafka.test_leadership import ConfluentTests, RegistriesTests
from tests.schemaregistry.kafka.test_takeover import TakeoverTests

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
OWN_BROKER = ("test_secondRegistry",)
"""Tests that need a broker with other settings."""


def main() -> int:
    """@return: the exit status."""
    argparse.ArgumentParser(description=__doc__.split("::")[0]).parse_args()
    tellStart("registries", f"Apache Kafka {VERSION}")
    loader = TestLoader()
    with apacheBroker(fetchKafka(), SETTINGS) as (host, port):
        KafkaRegistryCase.bootstrapServers = f"{host}:{port}"
        suite = loader.suiteFactory(
            case(name)
            for case in (TakeoverTests, RegistriesTests, ConfluentTests)
            for name in (f"{loader.methodPrefix}{end}" for end in loader.getTestCaseNames(case))
            if name not in OWN_BROKER
        )
        result = TrialRunner(TreeReporter).run(suite)
    tell(f"{result.testsRun} tests, {'all passed' if result.wasSuccessful() else 'some failed'}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
