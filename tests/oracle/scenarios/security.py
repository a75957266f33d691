"""ACLs, SCRAM credentials, client quotas, and SASL where there is none."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.pieces import (
    awaitTopic,
    batch,
    deleteTopicsBody,
    fetchBody,
    makeTopic,
    produce,
    topic,
    versionsOf,
)
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

_AUTHORIZER = (
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:ANONYMOUS"),
)
_TOPIC, _GROUP, _CLUSTER = 2, 3, 4
_LITERAL, _PREFIXED = 3, 4
_READ, _WRITE, _ALL = 3, 4, 2
_DENY, _ALLOW = 2, 3


def _creation(**fields: Any) -> Any:
    values = {
        "resourceType": _TOPIC,
        "resourceName": "acls",
        "resourcePatternType": _LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": _READ,
        "permissionType": _ALLOW,
    }
    return messages.CreateAclsRequest.AclCreation(**{**values, **fields})


def _filter(cls: Any, **fields: Any) -> Any:
    values = {
        "resourceTypeFilter": _TOPIC,
        "resourceNameFilter": "acls",
        "patternTypeFilter": _LITERAL,
        "principalFilter": None,
        "hostFilter": None,
        "operation": 1,
        "permissionType": 1,
    }
    return cls(**{**values, **fields})


@scenario(*_AUTHORIZER)
def acls(setting: Setting) -> Steps:
    """Rules made, listed and deleted, with good and bad values."""
    described = messages.DescribeAclsRequest
    for version in versionsOf(ApiKey.CREATE_ACLS):
        name = f"acls-{version}"
        cls = messages.CreateAclsRequest
        for label, creations in (
            ("one", [_creation(resourceName=name)]),
            ("again", [_creation(resourceName=name)]),
            (
                "prefixed and denied",
                [
                    _creation(
                        resourceName="acl", resourcePatternType=_PREFIXED, permissionType=_DENY
                    )
                ],
            ),
            (
                "two",
                [
                    _creation(resourceName=name, operation=_WRITE),
                    _creation(resourceType=_GROUP, resourceName=name),
                ],
            ),
            (
                "cluster",
                [_creation(resourceType=_CLUSTER, resourceName="kafka-cluster", operation=_ALL)],
            ),
            ("another cluster", [_creation(resourceType=_CLUSTER, resourceName="other")]),
            (
                "good and bad",
                [_creation(resourceName=name, host="10.0.0.1"), _creation(resourceName="")],
            ),
            ("no name", [_creation(resourceName="")]),
            ("any type", [_creation(resourceType=1)]),
            ("type 0", [_creation(resourceType=0)]),
            ("type 99", [_creation(resourceType=99)]),
            ("any pattern", [_creation(resourcePatternType=1)]),
            ("matching pattern", [_creation(resourcePatternType=2)]),
            ("any operation", [_creation(operation=1)]),
            ("operation 0", [_creation(operation=0)]),
            ("operation of another resource", [_creation(operation=9)]),
            ("any permission", [_creation(permissionType=1)]),
            ("a principal without type", [_creation(principal="alice")]),
            ("no principal", [_creation(principal="")]),
            ("all principals", [_creation(resourceName=name, principal="User:*")]),
            ("no host", [_creation(host="")]),
            ("a host that is a name", [_creation(resourceName=name, host="localhost")]),
            ("nothing", []),
        ):
            yield Ask(label, ApiKey.CREATE_ACLS, version, cls(creations=creations))

        def settled(label: str, count: int) -> Until:
            body = _filter(described, resourceNameFilter=name)  # noqa: B023
            return Until(
                Ask(label, ApiKey.DESCRIBE_ACLS, version, body),  # noqa: B023
                lambda found: sum(len(resource.acls) for resource in found.resources) >= count,
            )

        yield settled("of a topic", 4)
        for label, fields in (
            (
                "all of alice",
                {
                    "resourceTypeFilter": 1,
                    "resourceNameFilter": name,
                    "patternTypeFilter": 1,
                    "principalFilter": "User:alice",
                },
            ),
            ("matching", {"resourceNameFilter": name, "patternTypeFilter": 2}),
            ("prefixed", {"resourceNameFilter": "acl", "patternTypeFilter": _PREFIXED}),
            ("a host", {"resourceNameFilter": name, "hostFilter": "10.0.0.1"}),
            ("an operation", {"resourceNameFilter": name, "operation": _WRITE}),
            ("denied", {"resourceNameFilter": name, "permissionType": _DENY}),
            ("unknown name", {"resourceNameFilter": "none"}),
            ("type 0", {"resourceTypeFilter": 0}),
            ("pattern 0", {"patternTypeFilter": 0}),
            ("operation 0", {"operation": 0}),
            ("permission 0", {"permissionType": 0}),
        ):
            yield Ask(label, ApiKey.DESCRIBE_ACLS, version, _filter(described, **fields))
        deleted = messages.DeleteAclsRequest
        one = deleted.DeleteAclsFilter
        for label, filters in (
            ("one", [_filter(one, resourceNameFilter=name, hostFilter="10.0.0.1")]),
            ("unknown", [_filter(one, resourceNameFilter="none")]),
            (
                "two filters",
                [
                    _filter(one, resourceNameFilter=name, operation=_WRITE),
                    _filter(one, resourceNameFilter="none"),
                ],
            ),
            ("type 0", [_filter(one, resourceTypeFilter=0)]),
            (
                "all of a name",
                [_filter(one, resourceNameFilter=name, resourceTypeFilter=1, patternTypeFilter=1)],
            ),
            ("nothing", []),
        ):
            yield Ask(label, ApiKey.DELETE_ACLS, version, deleted(filters=filters))
        body = _filter(described, resourceNameFilter=name)
        yield Until(
            Ask("gone", ApiKey.DESCRIBE_ACLS, version, body), lambda found: not found.resources
        )


@scenario()
def aclsWithoutAuthorizer(setting: Setting) -> Steps:
    """The same requests where nothing is authorized."""
    for version in versionsOf(ApiKey.CREATE_ACLS):
        body: Any = messages.CreateAclsRequest(creations=[_creation()])
        yield Ask("create", ApiKey.CREATE_ACLS, version, body)
        body = _filter(messages.DescribeAclsRequest)
        yield Ask("describe", ApiKey.DESCRIBE_ACLS, version, body)
        cls = messages.DeleteAclsRequest
        body = cls(filters=[_filter(cls.DeleteAclsFilter)])
        yield Ask("delete", ApiKey.DELETE_ACLS, version, body)


@scenario()
def scramCredentials(setting: Setting) -> Steps:
    """Credentials made, listed and deleted."""
    key, cls = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, messages.AlterUserScramCredentialsRequest
    described = messages.DescribeUserScramCredentialsRequest

    def put(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> Any:
        return cls.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            saltedPassword=b"x" * 32,
        )

    def drop(name: str, mechanism: int = 1) -> Any:
        return cls.ScramCredentialDeletion(name=name, mechanism=mechanism)

    for label, dropped, made in (
        ("one", [], [put("alice")]),
        ("another mechanism", [], [put("alice", 2, 8192)]),
        ("replaced", [], [put("alice", 1, 5000)]),
        ("two users", [], [put("bob"), put("carol", 2)]),
        ("twice", [], [put("dora"), put("dora")]),
        ("deleted and made", [drop("alice")], [put("alice")]),
        ("too few iterations", [], [put("eve", 1, 4095)]),
        ("too many iterations", [], [put("eve", 1, 16385)]),
        ("mechanism 0", [], [put("eve", 0)]),
        ("mechanism 3", [], [put("eve", 3)]),
        ("no name", [], [put("")]),
        ("no salt", [], [put("eve", salt=b"")]),
        ("delete an unknown user", [drop("none")], []),
        ("delete an unknown mechanism", [drop("bob", 2)], []),
        ("delete mechanism 0", [drop("bob", 0)], []),
        ("good and bad", [drop("none")], [put("frank"), put("eve", 1, 1)]),
        ("nothing", [], []),
    ):
        yield Ask(label, key, 0, cls(deletions=dropped, upsertions=made))

    def users(*names: str) -> Any:
        return described(users=[described.UserName(name=name) for name in names])

    key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    yield Until(Ask("all", key, 0, described(users=None)), lambda found: len(found.results) >= 4)
    yield Ask("all, empty list", key, 0, users())
    yield Ask("some", key, 0, users("alice", "none"))
    yield Ask("twice", key, 0, users("alice", "alice"))
    yield Ask("no name", key, 0, users(""))


@scenario()
def clientQuotas(setting: Setting) -> Steps:
    """Quotas of users, clients and addresses."""
    key, cls = ApiKey.ALTER_CLIENT_QUOTAS, messages.AlterClientQuotasRequest

    def entry(entities: list[tuple[str, str | None]], *ops: tuple[str, float, bool]) -> Any:
        return cls.EntryData(
            entity=[cls.EntityData(entityType=kind, entityName=name) for kind, name in entities],
            ops=[cls.OpData(key=name, value=value, remove=remove) for name, value, remove in ops],
        )

    rate = ("producer_byte_rate", 1e9, False)
    described = messages.DescribeClientQuotasRequest

    def components(*given: tuple[str, int, str | None], strict: bool = False) -> Any:
        return described(
            components=[
                described.ComponentData(entityType=kind, matchType=match, match=name)
                for kind, match, name in given
            ],
            strict=strict,
        )

    for version in versionsOf(key):
        user = f"user-{version}"
        for label, entries in (
            ("a user", [entry([("user", user)], rate)]),
            (
                "a user's client",
                [
                    entry(
                        [("user", user), ("client-id", "c")],
                        rate,
                        ("request_percentage", 150.0, False),
                    )
                ],
            ),
            ("default user", [entry([("user", None)], ("consumer_byte_rate", 1e9, False))]),
            (
                "an address",
                [entry([("ip", "10.1.2.3")], ("connection_creation_rate", 100.0, False))],
            ),
            ("a wrong key for an address", [entry([("ip", "10.1.2.3")], rate)]),
            (
                "no address",
                [entry([("ip", "not an address !")], ("connection_creation_rate", 1.0, False))],
            ),
            ("address and user", [entry([("ip", "10.1.2.3"), ("user", "u")], rate)]),
            ("unknown key", [entry([("user", user)], ("nonsense", 1.0, False))]),
            ("unknown entity", [entry([("nonsense", "x")], rate)]),
            ("no entity", [entry([], rate)]),
            ("empty name", [entry([("user", "")], rate)]),
            ("zero", [entry([("user", user)], ("producer_byte_rate", 0.0, False))]),
            ("negative", [entry([("user", user)], ("producer_byte_rate", -1.0, False))]),
            ("a fraction of a byte", [entry([("user", user)], ("producer_byte_rate", 1.5, False))]),
            (
                "remove",
                [entry([("user", user), ("client-id", "c")], ("request_percentage", 0.0, True))],
            ),
            (
                "remove what is not there",
                [entry([("user", "none")], ("request_percentage", 0.0, True))],
            ),
            (
                "an entity twice",
                [entry([("user", "twice")], rate), entry([("user", "twice")], rate)],
            ),
            ("an entity type twice", [entry([("user", "a"), ("user", "b")], rate)]),
            ("good and bad", [entry([("user", "good")], rate), entry([("user", "")], rate)]),
            ("nothing", []),
        ):
            yield Ask(label, key, version, cls(entries=entries))
        yield Ask(
            "validate only",
            key,
            version,
            cls(entries=[entry([("user", "dry")], rate)], validateOnly=True),
        )
        show = ApiKey.DESCRIBE_CLIENT_QUOTAS
        yield Until(
            Ask("of a user", show, version, components(("user", 0, user))),
            lambda found: found.entries and len(found.entries) >= 2,
        )
        for label, body in (
            ("of a user, strict", components(("user", 0, user), strict=True)),
            ("of the default user", components(("user", 1, None))),
            ("of any client", components(("client-id", 2, None))),
            ("of a user's client", components(("user", 0, user), ("client-id", 0, "c"))),
            ("of an address", components(("ip", 0, "10.1.2.3"))),
            ("of an unknown user", components(("user", 0, "none"))),
            ("an unknown entity", components(("nonsense", 0, "x"))),
            ("match 9", components(("user", 9, "x"))),
            ("an entity twice", components(("user", 0, user), ("user", 2, None))),
            ("an address and a user", components(("ip", 2, None), ("user", 2, None))),
            ("exact null", components(("user", 0, None))),
            ("empty type", components(("", 0, "x"))),
        ):
            yield Ask(label, show, version, body)
        # Leave nothing behind.
        entries = [
            entry([("user", name)], ("producer_byte_rate", 0.0, True))
            for name in (user, "twice", "good")
        ]
        entries.append(
            entry([("user", user), ("client-id", "c")], ("producer_byte_rate", 0.0, True))
        )
        entries.append(entry([("user", None)], ("consumer_byte_rate", 0.0, True)))
        entries.append(entry([("ip", "10.1.2.3")], ("connection_creation_rate", 0.0, True)))
        yield Ask("remove all", key, version, cls(entries=entries))
        yield Until(
            Ask("nothing is left", show, version, components()),
            lambda found: not found.entries,
        )


@scenario()
def throttledClients(setting: Setting) -> Steps:
    """
    Clients that exceed quotas: what they are told, and what becomes of their requests. Each has a
    client id of its own, and a connection, since it is held back afterwards.
    """
    name = "throttled-clients"
    topicId = yield from makeTopic(name)
    cls = messages.AlterClientQuotasRequest

    def quota(clientId: str, key: str, value: float) -> Any:
        entity = cls.EntityData(entityType="client-id", entityName=clientId)
        return cls.EntryData(entity=[entity], ops=[cls.OpData(key=key, value=value)])

    entries = [
        quota("producer", "producer_byte_rate", 6500.0),
        quota("consumer", "consumer_byte_rate", 6500.0),
        quota("maker", "controller_mutation_rate", 1.0),
        quota("former", "controller_mutation_rate", 1.0),
        quota("remover", "controller_mutation_rate", 1.0),
    ]
    body: Any = cls(entries=entries)
    yield Ask("quotas", ApiKey.ALTER_CLIENT_QUOTAS, 1, body, isRecorded=False)
    described = messages.DescribeClientQuotasRequest
    one = described.ComponentData(entityType="client-id", matchType=2, match=None)
    yield Until(
        Ask(
            "settled",
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            1,
            described(components=[one]),
            isRecorded=False,
        ),
        lambda found: len(found.entries or ()) >= len(entries),
    )
    records = batch(setting.baseMs, b"v" * 60_000)
    for version, label in ((3, "first"), (3, "second"), (9, "third")):
        on = f"producer {label}"
        yield produce(label, version, name, topicId, records, clientId="producer", on=on)
    for version in (4, 13):
        for label in ("first", "second"):
            body = fetchBody(name, topicId, [(0, 0)], maxBytes=1000, partitionMaxBytes=1000)
            on = f"consumer {version} {label}"
            yield Ask(label, ApiKey.FETCH, version, body, clientId="consumer", on=on)
    body = fetchBody(name, topicId, [(0, 0)], sessionEpoch=0)
    yield Ask("a session", ApiKey.FETCH, 13, body, clientId="consumer", on="session")

    def creation(label: str, count: int) -> Any:
        return messages.CreateTopicsRequest(
            topics=[topic(f"{name}-{label}-{index}", 30) for index in range(count)]
        )

    for clientId, version in (("maker", 7), ("former", 5)):
        for label, count in ((f"{clientId}-first", 1), (f"{clientId}-second", 2)):
            body = creation(label, count)
            on = f"{clientId} {label}"
            yield Ask(label, ApiKey.CREATE_TOPICS, version, body, clientId=clientId, on=on)
    grown = messages.CreatePartitionsRequest
    body = grown(
        topics=[
            grown.CreatePartitionsTopic(name=f"{name}-maker-first-0", count=31, assignments=None)
        ],
        timeoutMs=5000,
    )
    ask = Ask("more", ApiKey.CREATE_PARTITIONS, 3, body, clientId="maker", on="maker, growing")
    yield ask
    for index in (0, 1):
        yield from awaitTopic(f"{name}-former-second-{index}", 30)
    for label, names in (
        ("first", [f"{name}-former-first-0"]),
        ("second", [f"{name}-former-second-0", f"{name}-former-second-1"]),
    ):
        body = deleteTopicsBody(6, *names)
        on = f"remover {label}"
        yield Ask(label, ApiKey.DELETE_TOPICS, 6, body, clientId="remover", on=on)
    gone = [
        cls.EntryData(
            entity=entry.entity, ops=[cls.OpData(key=op.key, remove=True) for op in entry.ops]
        )
        for entry in entries
    ]
    yield Ask("no quotas", ApiKey.ALTER_CLIENT_QUOTAS, 1, cls(entries=gone), isRecorded=False)


@scenario()
def saslOnPlaintext(setting: Setting) -> Steps:
    """SASL requests on a listener without SASL."""
    for version in versionsOf(ApiKey.SASL_HANDSHAKE):
        body: Any = messages.SaslHandshakeRequest(mechanism="PLAIN")
        yield Ask("handshake", ApiKey.SASL_HANDSHAKE, version, body)
    for version in versionsOf(ApiKey.SASL_AUTHENTICATE):
        body = messages.SaslAuthenticateRequest(authBytes=b"\0a\0b")
        yield Ask("authenticate", ApiKey.SASL_AUTHENTICATE, version, body)
    yield Ask("afterwards", ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
