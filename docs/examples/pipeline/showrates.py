"""
Tells the click-through rates that C{clickthrough.py} publishes: prints each as it comes, and serves
the last one of each campaign as JSON.

    python showrates.py --zookeeper localhost:2181 --listen tcp:8080:interface=127.0.0.1
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import react
from twisted.web.resource import Resource
from twisted.web.server import Site

from pylogbroker.consumer.connector import ConsumerConnector


class LastRates(Resource):
    """The last window of each campaign."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[str, dict[str, Any]] = {}

    def take(self, rate: dict[str, Any]) -> None:
        """One more. Of a window that is told twice, or late, the last word counts."""
        known = self._rates.get(rate["campaign"])
        if known is None or rate["begin"] >= known["begin"]:
            self._rates[rate["campaign"]] = rate

    def render_GET(self, request: Any) -> bytes:
        request.setHeader("Content-Type", "application/json")
        return json.dumps(self._rates, sort_keys=True).encode() + b"\n"


async def main(reactor: Any, options: Namespace) -> None:
    rates = LastRates()
    if options.listen:
        port = await serverFromString(reactor, options.listen).listen(Site(rates))
        address = port.getHost()
        print(f"serves on {address.host}:{address.port}", flush=True)
    settings = {
        "zk.connect": options.zookeeper,
        "groupid": options.group,
        "autooffset.reset": "smallest",
    }
    async with ConsumerConnector(reactor, settings) as consumer:
        streams = await consumer.createMessageStreams({options.topic: 1}, decode=json.loads)
        async for message in streams[options.topic][0]:
            rate = message.value
            rates.take(rate)
            print(
                f"{rate['begin']} {rate['campaign']}: {rate['clicks']} of {rate['impressions']},"
                f" {100 * rate['rate']:.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument("--topic", default="rates", help="where the rates are (%(default)s)")
    parser.add_argument(
        "--group", default="showrates", help="the consumer group to be a member of (%(default)s)"
    )
    parser.add_argument(
        "--listen",
        metavar="ENDPOINT",
        help="serve them, too, for instance at tcp:8080:interface=127.0.0.1",
    )
    react(lambda reactor, options: ensureDeferred(main(reactor, options)), [parser.parse_args()])
