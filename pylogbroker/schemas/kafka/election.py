"""
Which of several registries on a topic writes: what they tell one another as members of a group, as
Confluent's registries do. A module of its own, since it is pure.

The group has the protocol type C{sr} and the protocol C{v0}. A member's metadata are its identity,
in JSON. The group's leader (any member) chooses the registry that leads: of those that may, the one
with the smallest URL; all members get its identity as their assignment. So registries of both kinds
in one group agree, whichever of them the coordinator made the group's leader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidEntryError

PROTOCOL_TYPE = "sr"
PROTOCOL = "v0"
NO_ERROR, DUPLICATE_URLS = 0, 1
_VERSION = 1
_PORT_MAX = 65_535


class RegistryIdentity(NamedTuple):
    """
    A registry, for the others.

    @ivar host: under which they reach it.
    @ivar isEligible: whether it may lead.
    """

    host: str
    port: int
    isEligible: bool
    scheme: str

    @property
    def url(self) -> str:
        """Where its API is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class LeaderAssignment(NamedTuple):
    """
    The outcome of an election.

    @ivar error: L{DUPLICATE_URLS}: two members have the same URL, so that none can lead.
    @ivar memberId: of the registry that leads; empty: none may.
    @ivar leader: that registry; L{None}: none may.
    """

    error: int
    memberId: str
    leader: RegistryIdentity | None


def encodeIdentity(identity: RegistryIdentity) -> bytes:
    """The metadata of a member."""
    return _encode(_identityFields(identity))


def _identityFields(identity: RegistryIdentity) -> dict[str, Any]:
    return {
        "host": identity.host,
        "port": identity.port,
        "master_eligibility": identity.isEligible,
        "scheme": identity.scheme,
        "version": _VERSION,
    }


def decodeIdentity(data: bytes) -> RegistryIdentity:
    """
    @raise InvalidEntryError: these are no metadata of a registry.
    """
    return _identity(_decode(data))


def _identity(fields: Any) -> RegistryIdentity:
    if not isinstance(fields, dict):
        raise InvalidEntryError("an identity that is not a JSON object")
    host, port, scheme = fields.get("host"), fields.get("port"), fields.get("scheme") or "http"
    if not isinstance(host, str) or not host or scheme not in ("http", "https"):
        raise InvalidEntryError(f"an identity without a host, or with the scheme {scheme!r:.20}")
    if type(port) is not int or not 0 < port <= _PORT_MAX:
        raise InvalidEntryError("an identity without a port")
    isEligible = fields.get("master_eligibility", fields.get("leader_eligibility"))
    return RegistryIdentity(host, port, isEligible is True, scheme)


def elect(members: Mapping[str, bytes]) -> LeaderAssignment:
    """
    Choose the registry that leads.

    @param members: the metadata of all members, by their ids. One whose metadata cannot be read may
        not lead.
    """
    known: dict[str, RegistryIdentity] = {}
    for memberId, metadata in members.items():
        try:
            known[memberId] = decodeIdentity(metadata)
        except InvalidEntryError:
            continue
    error = NO_ERROR
    if len({each.url for each in known.values()}) < len(known):
        error = DUPLICATE_URLS
    eligible = {memberId: each for memberId, each in known.items() if each.isEligible}
    if not eligible:
        return LeaderAssignment(error, "", None)
    chosen = min(eligible, key=lambda memberId: (eligible[memberId].url, memberId))
    return LeaderAssignment(error, chosen, eligible[chosen])


def encodeAssignment(assignment: LeaderAssignment) -> bytes:
    """The assignment of every member."""
    fields: dict[str, Any] = {"error": assignment.error}
    if assignment.leader is not None:
        fields["master"] = assignment.memberId
        fields["master_identity"] = _identityFields(assignment.leader)
    return _encode({**fields, "version": _VERSION})


def decodeAssignment(data: bytes) -> LeaderAssignment:
    """
    @raise InvalidEntryError: this is no assignment of a registry.
    """
    fields = _decode(data)
    error, memberId = fields.get("error", NO_ERROR), fields.get("master") or ""
    if type(error) is not int or not isinstance(memberId, str):
        raise InvalidEntryError("an assignment whose error or master has another type")
    identity = fields.get("master_identity")
    return LeaderAssignment(error, memberId, None if identity is None else _identity(identity))


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidEntryError("not a JSON object")
    return fields
