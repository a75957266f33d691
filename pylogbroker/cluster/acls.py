"""
Access control lists: who may do what to which resource, by Kafka's rules.

An L{AclBinding} allows or denies an operation on a resource to a principal from a host. Its
resource is named whole (I{literal}; the name C{*} is every name), or by the beginning of its name
(I{prefixed}). All bindings that fit to a resource are looked at: one that denies wins; else one
that allows is needed. Where no binding names the resource at all, the caller decides.

To allow READ, WRITE, DELETE or ALTER allows DESCRIBE, too, and ALTER_CONFIGS allows
DESCRIBE_CONFIGS. To deny them does not deny the other.

What must be true: a decision takes a time that does not grow with the number of bindings, since
every request needs some. So L{AclTable} finds bindings by resource, then by principal. A name can
begin with any prefix; the table knows the lengths of all prefixes, of which there are few, and
looks for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

WILDCARD = "*"
"""The resource, or the host, that stands for each."""
ANYONE = "User:*"
"""The principal that stands for each."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class AclResourceType(IntEnum):
    """What a binding protects; as on the wire. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a binding names its resources; as on the wire. ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What a binding allows or denies; as on the wire. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether a binding allows; as on the wire. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O, _R = AclOperation, AclResourceType
OPERATIONS: dict[AclResourceType, tuple[AclOperation, ...]] = {
    _R.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    _R.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    _R.CLUSTER: (
        _O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.ALTER,
        _O.IDEMPOTENT_WRITE, _O.DESCRIBE,
    ),
    _R.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    _R.DELEGATION_TOKEN: (_O.DESCRIBE,),
    _R.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""What can be done to resources of a type."""

_IMPLYING: dict[int, frozenset[int]] = {
    _O.DESCRIBE: frozenset(map(int, (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER))),
    _O.DESCRIBE_CONFIGS: frozenset((int(_O.ALTER_CONFIGS),)),
}
"""The operations with which another one is allowed, too."""


class AclBinding(NamedTuple):
    """
    One rule.

    @ivar resourceType: an L{AclResourceType}.
    @ivar patternType: L{PatternType.LITERAL} or L{PatternType.PREFIXED}.
    @ivar principal: C{User:name}, or L{ANYONE}.
    @ivar host: an address as text, or L{WILDCARD}.
    @ivar operation: an L{AclOperation}.
    @ivar permission: L{AclPermission.ALLOW} or L{AclPermission.DENY}.
    """

    resourceType: int
    patternType: int
    resourceName: str
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """
    Some bindings; the fields as those of L{AclBinding}, where L{None} and ANY stand for each.

    @ivar patternType: MATCH stands for all bindings that fit to a resource of that name.
    """

    resourceType: int = AclResourceType.ANY
    patternType: int = PatternType.ANY
    resourceName: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY

    @property
    def binding(self) -> AclBinding | None:
        """The one binding that matches, if there can be no other."""
        name, principal, host = self.resourceName, self.principal, self.host
        if name is None or principal is None or host is None:
            return None
        if AclResourceType.ANY in (self.resourceType, self.operation, self.permission):
            return None
        if self.patternType in (PatternType.ANY, PatternType.MATCH):
            return None
        return AclBinding(
            self.resourceType,
            self.patternType,
            name,
            principal,
            host,
            self.operation,
            self.permission,
        )

    def matches(self, binding: AclBinding) -> bool:
        """Whether a binding is one of them."""
        return (
            self.resourceType in (AclResourceType.ANY, binding.resourceType)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
            and self._matchesPattern(binding)
        )

    def _matchesPattern(self, binding: AclBinding) -> bool:
        name, found = self.resourceName, binding.resourceName
        if self.patternType not in (PatternType.ANY, PatternType.MATCH, binding.patternType):
            return False
        if name is None:
            return True
        if self.patternType != PatternType.MATCH:
            return name == found
        if binding.patternType == PatternType.PREFIXED:
            return name.startswith(found)
        return found in (name, WILDCARD)


_Place = tuple[int, str]
_ByPrincipal = dict[str, dict[AclBinding, None]]


class AclTable:
    """Bindings, found by resource and principal."""

    def __init__(self) -> None:
        self._literal: dict[_Place, _ByPrincipal] = {}
        self._prefixed: dict[_Place, _ByPrincipal] = {}
        self._lengths: dict[int, Counter[int]] = {}  # of the prefixes, by type

    def _places(self, binding: AclBinding) -> dict[_Place, _ByPrincipal]:
        isPrefixed = binding.patternType == PatternType.PREFIXED
        return self._prefixed if isPrefixed else self._literal

    def add(self, binding: AclBinding) -> None:
        """Add a binding that is not there."""
        places, place = self._places(binding), binding[0:3:2]
        found = places.get(place)
        if found is None:
            found = places[place] = {}
            if places is self._prefixed:
                lengths = self._lengths.setdefault(binding.resourceType, Counter())
                lengths[len(binding.resourceName)] += 1
        found.setdefault(binding.principal, {})[binding] = None

    def remove(self, binding: AclBinding) -> None:
        """Remove a binding that is there."""
        places, place = self._places(binding), binding[0:3:2]
        found = places[place]
        mine = found[binding.principal]
        del mine[binding]
        if mine:
            return
        del found[binding.principal]
        if found:
            return
        del places[place]
        if places is self._prefixed:
            lengths = self._lengths[binding.resourceType]
            lengths[len(binding.resourceName)] -= 1
            if not lengths[len(binding.resourceName)]:
                del lengths[len(binding.resourceName)]

    def _about(self, resourceType: int, name: str) -> Iterator[_ByPrincipal]:
        """What fits to a resource."""
        for literal in (name, WILDCARD):
            found = self._literal.get((resourceType, literal))
            if found is not None:
                yield found
        for length in self._lengths.get(resourceType, ()):
            found = self._prefixed.get((resourceType, name[:length]))
            if found is not None and length <= len(name):
                yield found

    def decide(
        self, principal: str, host: str, operation: int, resourceType: int, name: str
    ) -> bool | None:
        """
        Whether a principal may do something.

        @return: L{None}: no binding is about the resource.
        """
        isAllowed, isKnown = False, False
        implying = _IMPLYING.get(operation, ())
        for found in self._about(resourceType, name):
            isKnown = True
            for who in (principal, ANYONE):
                for _, _, _, _, place, rule, permission in found.get(who, ()):
                    if place not in (host, WILDCARD):
                        continue
                    if rule in (operation, AclOperation.ALL):
                        if permission == AclPermission.DENY:
                            return False
                        isAllowed = True
                    elif rule in implying and permission == AclPermission.ALLOW:
                        isAllowed = True
        return isAllowed if isKnown else None

    def allowsSome(self, principal: str, host: str, operation: int, resourceType: int) -> bool:
        """
        Whether a principal may do something to at least one name of a type. Looks at all bindings
        of the principal and of L{ANYONE}.
        """
        allowed: list[AclBinding] = []
        deniedNames: set[str] = set()
        deniedPrefixes: set[str] = set()
        isAllAllowed = False
        for binding in self._of(principal, resourceType):
            if binding.host not in (host, WILDCARD):
                continue
            if binding.operation not in (operation, AclOperation.ALL):
                continue
            isPrefixed = binding.patternType == PatternType.PREFIXED
            isAll = not isPrefixed and binding.resourceName == WILDCARD
            if binding.permission == AclPermission.ALLOW:
                isAllAllowed = isAllAllowed or isAll
                allowed.append(binding)
            elif isAll:
                return False
            else:
                (deniedPrefixes if isPrefixed else deniedNames).add(binding.resourceName)
        if isAllAllowed:
            return True
        lengths = sorted(set(map(len, deniedPrefixes)))
        for binding in allowed:
            name = binding.resourceName
            if binding.patternType == PatternType.LITERAL and name in deniedNames:
                continue
            if not any(
                name[:length] in deniedPrefixes for length in lengths if length <= len(name)
            ):
                return True
        return False

    def _of(self, principal: str, resourceType: int) -> Iterator[AclBinding]:
        for places in (self._literal, self._prefixed):
            for place, found in places.items():
                if place[0] == resourceType:
                    for who in (principal, ANYONE):
                        yield from found.get(who, ())


def checkPrincipal(name: str) -> None:
    """@raise ValueError: it has no type; the text is Kafka's."""
    if ":" not in name:
        raise ValueError(
            f"Could not parse principal from `{name}` (no colon is present separating the principal"
            " type from the principal name)"
        )
