"""
Client quotas: limits on what users, clients and addresses may do in a second, by Kafka's rules.

A quota belongs to an entity: a user, a client id, a client id of a user, or an address; each name
may be the default, L{None}. For one client the most special entity that has the quota counts, in
the order of L{QuotaTable.find}. All that share the entity of a user, or of a client id, share one
rate, but under a default each has its own.

Rates are measured over some windows of time (L{SampledRate}), so that a client may send a burst,
and is then held back until its average is right again. Changes of topics cost tokens
(L{TokenBucket}), which come back at the rate of the quota.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

_DOUBLE, _INT, _LONG = None, 2**31 - 1, 2**63 - 1
CLIENT_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: _DOUBLE,
    CONTROLLER_MUTATION_RATE: _DOUBLE,
}
"""The quotas of users and clients, with the largest value of whole ones."""
IP_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: _INT}
"""The quotas of addresses."""
_REMAINDER_MAX = 1e-6
_DOUBLE_MAX = 1e300
THROTTLE_MS_MAX = 2**31 - 1
"""The longest time that a response can tell."""

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of the types."""


def keysOf(entity: Mapping[str, str | None]) -> Mapping[str, int | None]:
    """
    The quotas that an entity may have.

    @raise ValueError: there is no such entity; the text is Kafka's.
    """
    if not entity:
        raise ValueError("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise ValueError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ValueError(f"Empty {kind} not supported")
    if IP not in entity:
        return CLIENT_KEYS
    if len(entity) > 1:
        raise ValueError(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or"
            " ClientId"
        )
    address = entity[IP]
    if address is not None:
        try:
            ip_address(address)
        except ValueError:
            # Kafka looks names up, too, whose address may be another one tomorrow.
            raise ValueError(f"{address} is not a valid IP or resolvable host.") from None
    return IP_KEYS


def checkQuota(keys: Mapping[str, int | None], key: str, value: float) -> None:
    """@raise ValueError: there is no such quota; the text is Kafka's."""
    if key not in keys:
        raise ValueError(f"Invalid configuration key {key}")
    if not value > 0:
        raise ValueError(f"Quota {key} must be greater than 0")
    largest = keys[key]
    if largest is None:
        if value > _DOUBLE_MAX:  # with which nothing can be calculated
            raise ValueError(f"Proposed value for {key} is too large for a DOUBLE.")
        return
    if value > largest:
        kind = "an INT" if largest == _INT else "a LONG"
        raise ValueError(f"Proposed value for {key} is too large for {kind}.")
    if value % 1 > _REMAINDER_MAX:
        raise ValueError(f"{key} cannot be a fractional value.")


def entityOf(names: Mapping[str, str | None]) -> QuotaEntity:
    """The entity with some names, by type."""
    return tuple(sorted(names.items(), key=lambda item: item[0]))


class FoundQuota(NamedTuple):
    """
    The quota of a client.

    @ivar user: with whom it shares its rate; C{""}: with all users.
    @ivar clientId: likewise.
    """

    bound: float
    user: str
    clientId: str


class QuotaTable:
    """All quotas, to be found for a client."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = quotas

    def _bound(self, key: str, *names: tuple[str, str | None]) -> float | None:
        found = self._quotas.get(names)
        return None if found is None else found.get(key)

    def find(self, key: str, user: str, clientId: str) -> FoundQuota | None:
        """
        The quota of a client.

        @param user: the name of its principal.
        @return: L{None}: it has none.
        """
        for owner in (user, None):
            for client in (clientId, None):
                bound = self._bound(key, (CLIENT_ID, client), (USER, owner))
                if bound is not None:
                    return FoundQuota(bound, user, clientId)
            bound = self._bound(key, (USER, owner))
            if bound is not None:
                return FoundQuota(bound, user, "")
        for client in (clientId, None):
            bound = self._bound(key, (CLIENT_ID, client))
            if bound is not None:
                return FoundQuota(bound, "", clientId)
        return None

    def ofAddress(self, address: str) -> float | None:
        """The connections in a second that an address may make; L{None}: any number."""
        bound = self._bound(CONNECTION_CREATION_RATE, (IP, address))
        return self._bound(CONNECTION_CREATION_RATE, (IP, None)) if bound is None else bound


class SampledRate:
    """
    The average of an amount in a second, over a number of windows.

    @ivar bound: what the rate should not exceed. It may change.
    """

    __slots__ = ("_count", "_samples", "_windowMs", "bound")

    def __init__(self, bound: float, count: int, windowMs: int) -> None:
        """
        @param count: of windows, the present one included.
        @param windowMs: the length of each.
        """
        self.bound = bound
        self._count = count
        self._windowMs = windowMs
        self._samples: deque[list[float]] = deque()  # beginning and amount of each

    def add(self, amount: float, nowMs: int) -> None:
        """Something happened; a negative amount takes back what was added at this time."""
        if self._samples:
            last = self._samples[-1]
            passed = nowMs - last[0]
            if passed < self._windowMs:
                last[1] += amount
                return
            beginMs = nowMs - passed % self._windowMs
        else:
            beginMs = nowMs
        self._samples.append([beginMs, amount])
        self._forget(nowMs)

    def _forget(self, nowMs: int) -> None:
        samples = self._samples
        while samples and nowMs - samples[0][0] >= self._count * self._windowMs:
            samples.popleft()

    def throttleMs(self, nowMs: int) -> int:
        """How long to wait until the rate is the bound again; 0: it is not above it."""
        self._forget(nowMs)
        if not self._samples:
            return 0
        spanMs = nowMs - self._samples[0][0]
        missing = self._count - 1 - int(spanMs // self._windowMs)
        spanMs += max(missing, 0) * self._windowMs
        spanMs = max(spanMs, self._windowMs)  # of a single window that has just begun
        rate = sum(amount for _, amount in self._samples) * 1000 / spanMs
        if rate <= self.bound:
            return 0
        return round(min((rate - self.bound) / self.bound * spanMs, THROTTLE_MS_MAX))


class TokenBucket:
    """
    Tokens that come at a rate, up to those of all windows together. What is taken may be more than
    there is; then nothing may be taken until that is paid.

    @ivar bound: tokens in a second. It may change.
    """

    __slots__ = ("_atMs", "_spanMs", "_tokens", "bound")

    def __init__(self, bound: float, count: int, windowMs: int, nowMs: int) -> None:
        """
        @param count: of windows.
        @param windowMs: the length of each.
        """
        self.bound = bound
        self._spanMs = count * windowMs
        self._tokens = bound * self._spanMs / 1000
        self._atMs = nowMs

    def throttleMs(self, nowMs: int) -> int:
        """How long to wait until something may be taken; 0: now."""
        earned = (nowMs - self._atMs) * self.bound / 1000
        self._tokens = min(self._tokens + max(earned, 0), self.bound * self._spanMs / 1000)
        self._atMs = nowMs
        if self._tokens >= 0:
            return 0
        return round(min(-self._tokens / self.bound * 1000, THROTTLE_MS_MAX))

    def add(self, amount: float, nowMs: int) -> None:
        """Take tokens, also if there are too few."""
        self.throttleMs(nowMs)
        self._tokens -= amount
