"""
Fixtures of pytest with a real broker, for any client of Kafka::

    def test_it(kafka_broker):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrapServers})

pytest finds this module by itself, by the entry point C{pytest11}. One broker serves all tests of a
run, each of pytest-xdist's processes has its own, and every test finds it empty. Its settings are
what the fixture C{kafka_broker_properties} returns, which a C{conftest.py} may override.

pytest loads this module in every run. So it imports nothing before a test wants a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pylogbroker.testing.backgroundbroker import BackgroundBroker


@pytest.fixture(scope="session", name="kafka_broker_properties")
def kafkaBrokerProperties() -> Mapping[str, str]:
    """Properties of the broker of C{kafka_broker}, over its defaults for tests; none."""
    return {}


@pytest.fixture(scope="session", name="kafka_broker_session")
def kafkaBrokerSession(kafka_broker_properties: Mapping[str, str]) -> Iterator[BackgroundBroker]:
    """The broker of all tests, which nothing empties: for fixtures that outlive a test."""
    from pylogbroker.testing.backgroundbroker import BackgroundBroker

    with BackgroundBroker(kafka_broker_properties) as broker:
        yield broker


@pytest.fixture(name="kafka_broker")
def kafkaBroker(kafka_broker_session: BackgroundBroker) -> BackgroundBroker:
    """
    A broker without topics, groups and producer ids. It is emptied before the test and not after
    it, so that what a failed test has left can be looked at; one that a test has killed is started
    again.
    """
    kafka_broker_session.reset()
    return kafka_broker_session


@pytest.fixture(name="kafka_broker_factory")
def kafkaBrokerFactory() -> Iterator[Callable[..., BackgroundBroker]]:
    """
    Starts brokers of the test's own: C{kafka_broker_factory({"num.partitions": "3"})}. The
    arguments are those of L{BackgroundBroker}. They are closed when the test ends.
    """
    from pylogbroker.testing.backgroundbroker import BackgroundBroker

    brokers: list[BackgroundBroker] = []

    def start(
        properties: Mapping[str, str] | None = None, directory: str | None = None
    ) -> BackgroundBroker:
        brokers.append(BackgroundBroker(properties, directory))
        return brokers[-1].start()

    yield start
    for broker in brokers:
        broker.close()
