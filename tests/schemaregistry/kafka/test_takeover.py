"""
Tests for L{pylogbroker.schemaregistry.kafka.registry}: a topic that Confluent's registry wrote, and
what is written into it, byte for byte.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet import reactor

from pylogbroker.schemaregistry.service import RegistryService
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.manualbroker import capture
from tests.schemaregistry.kafka.kafkaregistrycase import KafkaRegistryCase, Record
from tests.schemas.kafka.goldenrecords import goldenRecords

GOLDEN = goldenRecords()
CLICK = (
    '{"type":"record","name":"Click","namespace":"web","fields":[{"name":"user","type":"string"}]}'
)
WIDEST = json.dumps(
    {
        "type": "record",
        "name": "Click",
        "namespace": "web",
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "ms", "type": "int", "default": 0},
            {"name": "page", "type": "string", "default": "/"},
        ],
    },
    separators=(",", ":"),
)


def schemaKey(subject: str, version: int) -> str:
    return f'{{"keytype":"SCHEMA","subject":"{subject}","version":{version},"magic":1}}'


def schemaValue(
    subject: str, version: int, schemaId: int, text: str, deleted: str = "false"
) -> str:
    return (
        f'{{"subject":"{subject}","version":{version},"id":{schemaId},"schema":{json.dumps(text)},'
        f'"deleted":{deleted}}}'
    )


class TakeoverTests(KafkaRegistryCase):
    """A topic of Confluent's registry."""

    async def takeOver(self, records: list[Record] = GOLDEN) -> RegistryService:
        await self.createTopic()
        await self.write(records)
        return await self.startService()

    async def test_serves(self) -> None:
        """
        Everything that Confluent's registry wrote is there: ids and versions, equal schemas with
        one id, other types, references, levels, modes, deleted versions. Nothing is written.
        """
        service = await self.takeOver()
        end = await self.end()

        async def get(path: str) -> Any:
            return await self.asked(service, "GET", path)

        self.assertEqual(
            await get("/subjects"),
            [
                "Kafka-key",
                "clicks-value",
                "common.proto",
                "copies-value",
                "events-value",
                "frozen-value",
                "imported-value",
                "old-value",
                "orders-value",
                "secrets-value",
                "user",
                "visits-value",
            ],
        )
        self.assertEqual(await get("/subjects?deletedOnly=true"), ["gone-value"])
        self.assertEqual(await get("/subjects/clicks-value/versions"), [1, 2])
        self.assertEqual(await get("/subjects/imported-value/versions"), [7])
        self.assertEqual(await get("/subjects/old-value/versions"), [2])
        self.assertEqual(await get("/subjects/old-value/versions?deleted=true"), [1, 2])
        self.assertEqual(
            await get("/subjects/copies-value/versions/latest"),
            {"subject": "copies-value", "version": 1, "id": 1, "schema": CLICK},
        )
        self.assertEqual(
            await get("/schemas/ids/1/versions"),
            [
                {"subject": "clicks-value", "version": 1},
                {"subject": "copies-value", "version": 1},
            ],
        )
        order = await get("/schemas/ids/5")
        self.assertEqual(order["schemaType"], "PROTOBUF")
        self.assertEqual(
            order["references"], [{"name": "common.proto", "subject": "common.proto", "version": 1}]
        )
        self.assertIn("message Order", await get("/schemas/ids/5/schema"))
        secret = await get("/subjects/secrets-value/versions/1")
        self.assertEqual(secret["metadata"], {"properties": {"owner": "security"}})
        self.assertEqual(secret["ruleSet"]["domainRules"][0]["name"], "encrypt")
        self.assertEqual(await get("/subjects/user/versions/1/referencedby"), [8])
        self.assertEqual(await get("/subjects/common.proto/versions/1/referencedby"), [5])
        self.assertEqual(await get("/config"), {"compatibilityLevel": "FULL"})
        self.assertEqual(
            await get("/config/clicks-value"), {"compatibilityLevel": "BACKWARD_TRANSITIVE"}
        )
        self.assertIn("defaultRuleSet", await get("/config/secrets-value"))
        self.assertEqual(await get("/mode"), {"mode": "READWRITE"})
        self.assertEqual(await get("/mode/frozen-value"), {"mode": "READONLY"})
        self.assertEqual(await get("/mode/imported-value"), {"mode": "IMPORT"})
        self.assertEqual(await get("/contexts"), [".", ".lab"])
        self.assertEqual(await self.records(), [each for each in GOLDEN if "NOOP" not in each[0]])
        self.assertEqual(await self.end(), end)

    async def test_writes(self) -> None:
        """
        What is added, deleted and set is in the topic as Confluent's registry writes it, byte for
        byte.
        """
        service = await self.takeOver()
        start = await self.end()

        async def ask(method: str, path: str, body: Any = None) -> Any:
            return await self.asked(service, method, path, body)

        schema = {"schema": WIDEST}
        self.assertEqual(await ask("POST", "/subjects/clicks-value/versions", schema), {"id": 101})
        self.assertEqual(await ask("POST", "/subjects/clicks-value/versions", schema), {"id": 101})
        again = {"schema": json.dumps(json.loads(CLICK), indent=1, sort_keys=True)}
        self.assertEqual(await ask("POST", "/subjects/fresh-value/versions", again), {"id": 1})
        self.assertEqual(await ask("DELETE", "/subjects/clicks-value/versions/1"), 1)
        self.assertEqual(await ask("DELETE", "/subjects/clicks-value/versions/1?permanent=true"), 1)
        self.assertEqual(await ask("DELETE", "/subjects/clicks-value"), [2, 3])
        self.assertEqual(await ask("DELETE", "/subjects/clicks-value?permanent=true"), [2, 3])
        self.assertEqual(
            await ask("PUT", "/config", {"compatibility": "NONE"}), {"compatibility": "NONE"}
        )
        self.assertEqual(
            await ask("PUT", "/config/fresh-value", {"compatibility": "FULL"}),
            {"compatibility": "FULL"},
        )
        self.assertEqual(await ask("DELETE", "/config/fresh-value"), {"compatibilityLevel": "FULL"})
        mode = {"mode": "READONLY"}
        self.assertEqual(await ask("PUT", "/mode/fresh-value", mode), mode)
        self.assertEqual(await ask("DELETE", "/mode/fresh-value"), mode)
        self.assertEqual(
            await ask("POST", "/subjects/old-value/versions", {"schema": '"long"'}), {"id": 10}
        )
        config = '{"keytype":"CONFIG","subject":"%s","magic":0}'
        freshMode = '{"keytype":"MODE","subject":"fresh-value","magic":0}'
        self.assertEqual(
            await self.records(start),
            [
                (schemaKey("clicks-value", 3), schemaValue("clicks-value", 3, 101, WIDEST)),
                (schemaKey("fresh-value", 1), schemaValue("fresh-value", 1, 1, CLICK)),
                (schemaKey("clicks-value", 1), schemaValue("clicks-value", 1, 1, CLICK, "true")),
                (schemaKey("clicks-value", 1), None),
                (
                    '{"keytype":"DELETE_SUBJECT","subject":"clicks-value","magic":0}',
                    '{"subject":"clicks-value","version":3}',
                ),
                (config % "clicks-value", None),
                (schemaKey("clicks-value", 2), None),
                (schemaKey("clicks-value", 3), None),
                (
                    '{"keytype":"CONFIG","subject":null,"magic":0}',
                    '{"compatibilityLevel":"NONE"}',
                ),
                (config % "fresh-value", '{"subject":"fresh-value","compatibilityLevel":"FULL"}'),
                (config % "fresh-value", None),
                (freshMode, '{"subject":"fresh-value","mode":"READONLY"}'),
                (freshMode, None),
                (schemaKey("old-value", 3), schemaValue("old-value", 3, 10, '"long"')),
                (schemaKey("old-value", 1), None),
            ],
        )

    async def test_refused(self) -> None:
        """
        A request that touches what is not served is refused, with the reason; nothing is written.
        """
        service = await self.takeOver()
        before = await self.records()
        schema = {"schema": CLICK}
        for code, method, path, body, reason in (
            (42205, "POST", "/subjects/frozen-value/versions", schema, "READONLY"),
            (42205, "DELETE", "/subjects/frozen-value", None, "read-only mode"),
            (42205, "PUT", "/config/frozen-value", {"compatibility": "NONE"}, "read-only mode"),
            (42205, "POST", "/subjects/imported-value/versions", schema, "IMPORT"),
            (42204, "PUT", "/mode/user", {"mode": "IMPORT"}, "can be set here"),
            (42205, "POST", "/subjects/secrets-value/versions", schema, "defaultRuleSet"),
            (42205, "POST", "/subjects/visits-value/versions", schema, "refers to other schemas"),
            (409, "POST", "/subjects/events-value/versions", schema, "is JSON"),
            (42206, "DELETE", "/subjects/user/versions/1", None, "ids 8"),
            (42206, "DELETE", "/subjects/common.proto", None, "ids 5"),
            (42205, "GET", "/subjects/:.lab:clicks-value/versions", None, "another context"),
            (42205, "POST", "/subjects/:.lab:clicks-value/versions", schema, "another context"),
            (
                42201,
                "POST",
                "/subjects/new/versions",
                {"schema": "syntax", "schemaType": "PROTOBUF"},
                "not supported",
            ),
            (
                42201,
                "POST",
                "/subjects/new/versions",
                {**schema, "references": [{"name": "User", "subject": "user", "version": 1}]},
                "References are not supported",
            ),
            (40401, "DELETE", "/subjects/nothing", None, "not found"),
            (40404, "DELETE", "/subjects/gone-value", None, "soft deleted"),
            (40405, "DELETE", "/subjects/user?permanent=true", None, "not deleted first"),
            (40406, "DELETE", "/subjects/old-value/versions/1", None, "soft deleted"),
            (40407, "DELETE", "/subjects/old-value/versions/2?permanent=true", None, "not deleted"),
            (40402, "DELETE", "/subjects/old-value/versions/9", None, "not found"),
            (40401, "DELETE", "/config/nothing", None, "not found"),
            (40401, "DELETE", "/mode/nothing", None, "not found"),
            (40409, "GET", "/mode/nothing", None, "mode configured"),
            (40408, "GET", "/config/nothing", None, "compatibility configured"),
        ):
            with self.subTest(path=path):
                self.assertIn(reason, await self.refused(code, service, method, path, body))
        path = "/compatibility/subjects/%s/versions/latest?verbose=true"
        answer = await self.asked(service, "POST", path % "events-value", schema)
        self.assertFalse(answer["is_compatible"])
        self.assertIn("is JSON", answer["messages"][0])
        await self.refused(42205, service, "POST", path % "visits-value", schema)
        self.assertEqual(await self.records(), before)

    async def test_registered(self) -> None:
        """A schema that a subject has is found there, whatever the subject's mode and rules are."""
        service = await self.takeOver()
        for subject, text, schemaId in (
            ("frozen-value", '"long"', 10),
            (
                "secrets-value",
                json.loads(dict(GOLDEN)[schemaKey("secrets-value", 1)] or "")["schema"],
                9,
            ),
        ):
            path = f"/subjects/{subject}/versions"
            self.assertEqual(
                await self.asked(service, "POST", path, {"schema": text}), {"id": schemaId}
            )

    async def test_kept(self) -> None:
        """
        A version that is deleted keeps all of its other fields, also those that are unknown here;
        so does a configuration whose level is set.
        """
        unknown = schemaValue("odd", 1, 200, '"int"').replace(
            '"schema"', '"guid":"5c7b","md5":"kg==","schema"'
        )
        alias = '{"subject":"odd","alias":"other","compatibilityLevel":"NONE","later":{"a":[1]}}'
        config = '{"keytype":"CONFIG","subject":"odd","magic":0}'
        service = await self.takeOver([*GOLDEN, (schemaKey("odd", 1), unknown), (config, alias)])
        start = await self.end()
        await self.asked(service, "PUT", "/config/odd", {"compatibility": "FULL"})
        await self.asked(service, "PUT", "/mode/odd", {"mode": "READWRITE"})
        for subject in ("odd", "visits-value", "secrets-value"):
            await self.asked(service, "DELETE", f"/subjects/{subject}/versions/1")
        found = await self.records(start)
        self.assertEqual(found[0], (config, alias.replace("NONE", "FULL")))
        values = {key: value for key, value in found if value is not None}
        before = {**dict(GOLDEN), schemaKey("odd", 1): unknown}
        for subject in ("odd", "visits-value", "secrets-value"):
            key = schemaKey(subject, 1)
            expected = {**json.loads(before[key] or ""), "deleted": True}
            self.assertEqual(json.loads(values[key]), expected)
        key = schemaKey("visits-value", 1)
        self.assertEqual(values[key], (before[key] or "").replace("false", "true"))
        self.assertIn((config, None), found)
        self.assertIn(('{"keytype":"MODE","subject":"odd","magic":0}', None), found)

    async def test_otherKeys(self) -> None:
        """
        A key whose fields another registry wrote in another order is written in that form again, so
        that a compaction removes what is deleted.
        """
        key = '{"subject":"s","version":1,"magic":1,"keytype":"SCHEMA"}'
        service = await self.takeOver([(key, schemaValue("s", 1, 1, '"int"'))])
        start = await self.end()
        await self.asked(service, "DELETE", "/subjects/s/versions/1")
        await self.asked(service, "DELETE", "/subjects/s/versions/1?permanent=true")
        self.assertEqual(
            await self.records(start), [(key, schemaValue("s", 1, 1, '"int"', "true")), (key, None)]
        )

    async def test_skipped(self) -> None:
        """Records that cannot be read are logged with their offsets, and skipped."""
        lines = capture(self)
        wrong: list[Record] = [
            ("no JSON", None),
            ("[]", None),
            ('{"magic":0}', None),
            (schemaKey("a", 1), "no JSON"),
            (schemaKey("a", 1), '{"subject":"a","version":1,"id":"one","schema":"x"}'),
            (schemaKey("a", 1), '{"subject":"a","version":1,"id":1}'),
            (schemaKey("a", 0), schemaValue("a", 0, 50, '"int"')),
            ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"SOMETIMES"}'),
            ('{"keytype":"LATER","subject":"a","magic":9}', '{"what":"is this"}'),
        ]
        service = await self.takeOver([*wrong, *GOLDEN])
        self.assertEqual(self.registryOf(service).skippedCount, len(wrong) - 1)
        skipped = [line for line in lines() if "Skipped the record at offset" in line]
        self.assertEqual(len(skipped), len(wrong) - 1)
        self.assertIn("offset 3", skipped[3])
        self.assertEqual(
            await self.asked(service, "GET", "/config"), {"compatibilityLevel": "FULL"}
        )

    async def test_secondRegistry(self) -> None:
        """
        Another registry takes over what the first has left, also after a compaction, and goes on
        with the next id.
        """
        await self.broker.stop()
        self.broker = LocalBroker(
            reactor,
            {
                "log.cleaner.backoff.ms": "50",
                "log.roll.ms": "1",
                "log.cleaner.min.cleanable.ratio": "0.01",
                "log.cleaner.delete.retention.ms": "0",
            },
        )
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        service = await self.takeOver()
        await self.asked(service, "DELETE", "/subjects/clicks-value")
        await self.asked(service, "DELETE", "/subjects/clicks-value?permanent=true")
        body = {"schema": WIDEST}
        await self.asked(service, "POST", "/subjects/clicks-value/versions", body)
        paths = [
            "/subjects?deleted=true",
            "/subjects/clicks-value/versions/latest",
            "/subjects/old-value/versions?deleted=true",
            "/schemas/ids/1/versions",
            "/config",
            "/mode/frozen-value",
        ]
        answers = [await self.asked(service, "GET", path) for path in paths]
        await service.stopService()
        # By the offsets, since a compaction may have come already; the registry wrote a NOOP, too.
        count = await self.end() - sum('"NOOP"' in key for key, _value in GOLDEN) - 1
        for _attempt in range(200):
            await self.write([('{"keytype":"NOOP","magic":0}', None)])  # the last segment is kept
            if len(await self.records()) < count - 8:
                break
        else:
            self.fail("nothing was compacted")
        again = await self.startService()
        self.assertEqual([await self.asked(again, "GET", path) for path in paths], answers)
        body = {"schema": '{"type":"map","values":"int"}'}
        self.assertEqual(
            await self.asked(again, "POST", "/subjects/new/versions", body), {"id": 102}
        )
