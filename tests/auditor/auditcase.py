"""
What the tests of the auditor share: brokers without ZooKeeper, an audited producer, and a way to
copy a topic with a hole in it.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.audit.counts import CountReport
from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.config.auditsettings import AUDIT_TOPIC, AuditorSettings
from pylogbroker.testing.localbroker import LocalBroker
from tests.cli.commands import CommandCase, reactor

WINDOW_MS = 1000


def report(topic: str, startMs: int, count: int, source: str = "p", **changes: Any) -> bytes:
    """A count, as a message."""
    return (
        CountReport(
            "sent",
            "live",
            topic,
            startMs,
            WINDOW_MS,
            count,
            0,
            source,
            startMs // WINDOW_MS,
            1,
            "h",
            0,
        )
        ._replace(**changes)
        .encode()
    )


def packed(timeMs: int, payload: bytes = b"x") -> bytes:
    """A payload in an envelope."""
    return encodeEnvelope(timeMs, b"web1", payload)


class AuditCase(CommandCase):
    """
    Two brokers, C{live} and C{mirror}.

    @ivar base: the time of the messages: the beginning of a window, an hour ago.
    """

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.live = await self.startBroker()
        self.mirror = await self.startBroker()
        self._tiers = [
            f"live=broker:127.0.0.1:{self.live.port}",
            f"mirror=broker:127.0.0.1:{self.mirror.port}",
        ]
        self.base = (int(reactor.seconds() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS

    def tiers(self) -> list[str]:
        """As an auditor is told them."""
        return self._tiers

    def settings(self, **properties: str) -> AuditorSettings:
        given = {
            "tiers": "|".join(self.tiers()),
            "audit.window.ms": str(WINDOW_MS),
            "timeout.ms": "3000",
            "listen": "tcp:0:interface=127.0.0.1",
        }
        return AuditorSettings.fromProperties(
            {**given, **{key.replace("_", "."): value for key, value in properties.items()}},
            self.fail,
        )

    async def put(self, broker: LocalBroker, topic: str, *payloads: bytes) -> None:
        """Messages into one broker."""
        self.broker = broker
        await self.publish(topic, *payloads)

    async def fill(
        self,
        liveCount: int = 10,
        mirrorCount: int = 10,
        reported: int = 10,
        startMs: int = 0,
        topic: str = "clicks",
    ) -> None:
        """Messages of one window in both, and a count of them."""
        times = [self.base + startMs + number for number in range(max(liveCount, mirrorCount))]
        for broker, count in ((self.live, liveCount), (self.mirror, mirrorCount)):
            if count:
                await self.put(broker, topic, *[packed(time) for time in times[:count]])
        await self.put(self.live, AUDIT_TOPIC, report(topic, self.base + startMs, reported))
