"""
Several brokers on leads that share time, metadata and connections: what one cluster is, without
ZooKeeper. Their connections are pairs of real sockets, which a test can cut.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet import tcp
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError as RefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from pylogbroker.cluster.metadataimage import (
    PartitionImage,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from pylogbroker.interfaces import ConnectBroker
from pylogbroker.net.sendfile import SendfileTransport
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from tests.broker.kafka.groupcase import PROPERTIES
from tests.broker.kafka.test_transactions import TransactionCase
from tests.broker.manualbroker import LeadBroker, LeadReactor

PORT = 9092
"""Of broker 0; the next one has the next."""


class _ClientTransport(tcp.Server):
    """The client's end; a pair of sockets is no TCP."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing."""

    setTcpKeepAlive = setTcpNoDelay


@implementer(IStreamClientEndpoint)
class PairEndpoint:
    """An endpoint that connects to a broker on a lead by a pair of sockets."""

    def __init__(self, network: LeadNetwork, port: int) -> None:
        self._network = network
        self._port = port

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """See C{IStreamClientEndpoint}."""
        network = self._network
        lead = network.leads.get(self._port)
        network.attempts.append(self._port)
        if lead is None or self._port in network.unreachable:
            return fail(RefusedError())
        near, far = socket.socketpair()
        made = protocolFactory.buildProtocol(None)
        network.count += 1
        address = ("192.0.2.7", network.count)
        served: Any = lead.service.factories[0].buildProtocol(IPv4Address("TCP", *address))
        ends: list[Any] = [(far, made, _ClientTransport), (near, served, SendfileTransport)]
        for end, protocol, kind in ends:
            end.setblocking(False)
            transport: Any = kind(end, protocol, address, None, network.count, network.reactor)
            transport.repstr = f"<pair {network.count}>"
            transport.getHost = lambda: IPv4Address("TCP", "192.0.2.9", PORT)
            network.transports.append((self._port, transport))
            protocol.makeConnection(transport)
        return succeed(made)


class LeadNetwork:
    """
    What connects brokers on leads.

    @ivar leads: by port.
    @ivar attempts: ports to which a connection was tried.
    @ivar unreachable: ports that refuse.
    @ivar count: of connections made.
    """

    def __init__(self, reactor: LeadReactor) -> None:
        self.reactor = reactor
        self.leads: dict[int, LeadBroker] = {}
        self.attempts: list[int] = []
        self.unreachable: set[int] = set()
        self.count = 0
        self.transports: list[tuple[int, Any]] = []

    def cut(self, port: int) -> None:
        """Cut all connections to a broker."""
        for each, transport in self.transports:
            if each == port and transport.connected:
                transport.abortConnection()
        self.transports = [each for each in self.transports if each[0] != port]
        self.reactor.turn()

    def connector(self, settings: Any) -> ConnectBroker:
        """What a broker is given."""
        return interBrokerClients(
            self.reactor, settings, lambda host, port: PairEndpoint(self, port)
        )


class ClusterCase(TransactionCase):
    """
    Brokers 0 and 1. C{t} has three partitions; broker 0 leads the first and the last, broker 1 the
    second. Broker 0 coordinates the transactions, and broker 1 the groups, unless a test class says
    otherwise.

    @ivar lead: the broker to which requests go; L{use} changes it.
    """

    leaders: dict[str, Sequence[int]] = {
        "t": (0, 1, 0),
        TRANSACTIONS_TOPIC: (0,),
        OFFSETS_TOPIC: (1, 1),
    }
    propertiesOf: Sequence[dict[str, str]] = ({}, {})

    def setUp(self) -> None:
        reactor = LeadReactor()
        reactor.advance(1_300_000_000.0)
        self.reactor = reactor
        self.network = LeadNetwork(reactor)
        self.leads = [self._newLead(each) for each in range(2)]
        for each in self.leads:
            each.others = [other for other in self.leads if other is not each]
            self.network.leads[PORT + each.settings.brokerId] = each
        self.lead = self.leads[0]
        self.lead.settle()
        self.change(self.records())
        for each in self.leads:
            self.lead = each
            self.find(keyType=1, key="x")  # loads the topics of the coordinators
            self.find(keyType=0, key="x")
        self.lead = self.leads[0]

    def _newLead(self, number: int, **more: Any) -> LeadBroker:
        properties = {**PROPERTIES, "transaction.state.log.num.partitions": "1"}
        lead = LeadBroker(
            {**properties, "brokerid": str(number), **self.propertiesOf[number]},
            reactor=self.reactor,
            formats=(Kafka07Format(), KafkaFormat()),
            connectBroker=lambda *address: self.connect[number](*address),
            **more,
        )
        self.connect = getattr(self, "connect", {})
        self.connect[number] = self.network.connector(lead.settings)
        self.addCleanup(self._closePeers, lead)
        return lead.start()

    def records(self) -> list[Record]:
        """The cluster's brokers and topics."""
        found: list[Record] = [self.registration(each) for each in range(2)]
        for at, (name, leaders) in enumerate(self.leaders.items()):
            topicId = f"12345678-1234-4234-8234-12345678000{at}"
            found.append(TopicRecord(name, topicId, len(leaders)))
            found += [
                PartitionRecord(topicId, index, leader, 0, 0, [leader], [leader], [], -1, [], [])
                for index, leader in enumerate(leaders)
            ]
        return found

    def registration(self, number: int, epoch: int = 1) -> RegisterBrokerRecord:
        endpoint = ["PLAINTEXT", "192.0.2.9", PORT + number, "PLAINTEXT"]
        return RegisterBrokerRecord(number, epoch + number, [endpoint], None)

    def change(self, records: Sequence[Record], leads: Sequence[LeadBroker] | None = None) -> None:
        """Change the metadata of all brokers, or of some."""
        for each in self.leads if leads is None else leads:
            changing = Deferred.fromCoroutine(
                each.service.kafka.topics.change(lambda image: (list(records), None))
            )
            each.settle()
            self.successResultOf(changing)

    def moveLeader(self, topic: str, index: int, leader: int) -> list[Record]:
        """The record of a partition's next leader, which then is its only replica; -1: none."""
        found = self.lead.service.kafka.metadata.image.topics[topic]
        old = found.partitions[index]
        new = PartitionImage(
            leader, old.leaderEpoch + 1, old.partitionEpoch + 1, (leader,), (leader,)
        )
        return [new.record(found.topicId, index)]

    def use(self, number: int) -> None:
        """Send the next requests to a broker."""
        self.lead = self.leads[number]

    def on(self, number: int, act: Callable[[], Any]) -> Any:
        """What requests to a broker give."""
        before, self.lead = self.lead, self.leads[number]
        try:
            return act()
        finally:
            self.lead = before

    def marksOf(self, number: int, index: int, topic: str = "t") -> tuple[int, int]:
        """Last stable offset, and end, of a partition at a broker."""
        found = self.leads[number].log(topic, index)
        return found.lastStableOffset, found.logEndOffset
