"""
Groups of the new consumer protocol (KIP-848) with confluent-kafka, as its users configure it:
C{group.protocol=consumer}; and groups with members of both protocols.
"""

from __future__ import annotations

from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from tests.integration.test_kafkaclients import POLL_SECONDS, TIMEOUT_SECONDS, ClientCase

TOPIC = "t"
PARTITION_COUNT = 4
INTERVAL_MS = 100
"""Of heartbeats here, so that the tests need not wait for those of others."""

RETRIED = (
    confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
    confluent_kafka.KafkaError.ILLEGAL_GENERATION,
    confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._WAIT_COORD,
    confluent_kafka.KafkaError._TIMED_OUT,
)


class ConsumerGroupTests(ClientCase):
    """Members, and the positions of their group."""

    properties = {
        "group.consumer.heartbeat.interval.ms": str(INTERVAL_MS),
        "group.consumer.assignment.interval.ms": "0",
    }

    def member(self, *topics: str, **settings: Any) -> Any:
        """A member of the group, which ends with the test."""
        found = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "g",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        self.addCleanup(found.close)
        found.subscribe(list(topics) or [TOPIC])
        return found

    def classicMember(self) -> Any:
        """A member of the same group that speaks the classic protocol."""
        return self.member(**{"group.protocol": "classic", "heartbeat.interval.ms": INTERVAL_MS})

    def produce(self, *values: str) -> None:
        """A record in each partition of the topic for each value."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})
        for value in values:
            for partition in range(PARTITION_COUNT):
                producer.produce(TOPIC, value, partition=partition)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)

    def take(self, members: list[Any], found: list[tuple[str, int]]) -> None:
        """What the members get in a moment, and its positions are committed."""
        for member in members:
            message = member.poll(POLL_SECONDS)
            if message is not None:
                self.assertIsNone(message.error())
                found.append((message.value().decode(), message.partition()))
                self.commit(member, message)

    def commit(self, member: Any, message: Any) -> None:
        """Commit a position, again if the broker starts, or the member's epoch moves, meanwhile."""
        done: list[Any] = []

        def step() -> None:
            try:
                done.append(member.commit(message, asynchronous=False))
            except confluent_kafka.KafkaException as error:
                self.assertTrue(error.args[0].retriable() or error.args[0].code() in RETRIED, error)

        self.until(step, lambda: bool(done))

    def assigned(self, member: Any) -> list[int]:
        """The partitions that a member owns."""
        return sorted(each.partition for each in member.assignment())

    def consume(self, members: list[Any], *values: str) -> None:
        """All partitions' records with these values, each once."""
        found: list[tuple[str, int]] = []
        count = len(values) * PARTITION_COUNT
        self.until(lambda: self.take(members, found), lambda: len(found) >= count)
        expected = [(value, place) for value in values for place in range(PARTITION_COUNT)]
        self.assertEqual(sorted(found), sorted(expected))

    def test_group(self) -> None:
        """
        A second member takes half of the partitions, gives them back when it goes, and positions
        survive a C{kill -9} of the broker.
        """
        self.create(TOPIC, PARTITION_COUNT)
        first = self.member()
        self.produce("one")
        self.consume([first], "one")
        second = self.member()
        both = [first, second]
        half = PARTITION_COUNT // 2
        self.until(
            lambda: self.take(both, []),
            lambda: [len(self.assigned(each)) for each in both] == [half] * 2,
        )
        places = sorted(place for each in both for place in self.assigned(each))
        self.assertEqual(places, list(range(PARTITION_COUNT)))
        self.produce("two")
        self.consume(both, "two")
        self.broker.kill()
        self.broker.start()
        self.produce("three")
        self.consume(both, "three")
        second.close()
        self.until(
            lambda: self.take([first], []), lambda: len(self.assigned(first)) == PARTITION_COUNT
        )
        self.produce("four")
        self.consume([first], "four")

    def test_bothProtocols(self) -> None:
        """
        A group of classic members goes over to the new protocol one by one, and back: no record is
        missed or comes twice, since each is consumed while no member comes or goes.
        """
        self.create(TOPIC, PARTITION_COUNT)
        first = self.classicMember()
        self.produce("one")
        self.consume([first], "one")
        second = self.member()
        self.settled(first, second)
        self.assertEqual(self.groupType(), ConsumerGroupType.CONSUMER)
        self.produce("two")
        self.consume([first, second], "two")
        first.close()
        self.settled(second)
        self.produce("three")
        self.consume([second], "three")
        third = self.classicMember()
        self.settled(second, third)
        self.produce("four")
        self.consume([second, third], "four")
        self.broker.kill()
        self.broker.start()
        self.produce("five")
        self.consume([second, third], "five")
        second.close()
        self.settled(third)
        self.assertEqual(self.groupType(), ConsumerGroupType.CLASSIC)
        self.produce("six")
        self.consume([third], "six")

    def settled(self, *members: Any) -> None:
        """Wait until each member has its part of the partitions, when there are no records."""
        part = PARTITION_COUNT // len(members)
        self.until(
            lambda: self.assertEqual(
                [each.poll(POLL_SECONDS) for each in members], [None] * len(members)
            ),
            lambda: [len(self.assigned(each)) for each in members] == [part] * len(members),
        )

    def groupType(self) -> Any:
        """What an administrator is told."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        (found,) = admin.list_consumer_groups().result(TIMEOUT_SECONDS).valid
        return found.type

    def test_described(self) -> None:
        """An administrator sees the group, its members and what they own."""
        self.create(TOPIC, PARTITION_COUNT)
        member = self.member()
        self.until(
            lambda: self.take([member], []), lambda: len(self.assigned(member)) == PARTITION_COUNT
        )
        admin = AdminClient({"bootstrap.servers": self.servers})
        listed = admin.list_consumer_groups().result(TIMEOUT_SECONDS)
        self.assertEqual(
            [(each.group_id, each.state) for each in listed.valid],
            [("g", ConsumerGroupState.STABLE)],
        )

    def test_pattern(self) -> None:
        """A member that subscribes by a pattern gets the topics that match it."""
        self.create(TOPIC, PARTITION_COUNT)
        member = self.member("^[st]$")
        self.produce("one")
        self.consume([member], "one")
