"""Tests for L{pylogbroker.config.securitysettings}."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.config.securitysettings import PLAIN, SecuritySettings, ToolSettings
from pylogbroker.errors import ConfigurationError

TEMPLATE = "tls:{host}:{port}:trustRoots=/ca.d"


def access(digest: str, acl: str) -> SecuritySettings:
    """Settings as a file with these values gives them."""
    return SecuritySettings.fromProperties(
        {"zk.digest": digest, "zk.acl": acl, "broker.endpoint": TEMPLATE}
    )


class SecuritySettingsTests(SynchronousTestCase):
    """How to get at a cluster."""

    def file(self, text: str) -> str:
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_defaults(self) -> None:
        """Without anything, no credentials and no TLS."""
        self.assertEqual(SecuritySettings.read(None, []), PLAIN)
        self.assertEqual((PLAIN.zkDigest, PLAIN.zkAcl, PLAIN.brokerEndpoint), ("", "readable", ""))

    def test_file(self) -> None:
        """
        Of a consumer's own file what is ours counts, and the rest means nothing; changes stand over
        it.
        """
        path = self.file(
            f"groupid=g\nzk.digest=me:secret\nzk.acl=private\nbroker.endpoint={TEMPLATE}\nno.such=key\n"
        )
        self.assertEqual(SecuritySettings.read(path, []), access("me:secret", "private"))
        self.assertEqual(
            SecuritySettings.read(path, ["zk.acl=open", "zk.digest=you:other"]),
            access("you:other", "open"),
        )

    def test_wrong(self) -> None:
        """
        An unknown key in a change, a wrong value and a missing file are errors; a password is in
        none of them.
        """
        for path, changes, part in (
            (None, ["zk.digset=me:secret"], "zk.digest"),
            (None, ["zk.acl=all"], "zk.acl=all"),
            (None, ["zk.digest=secret"], "user:password"),
            (None, ["broker.endpoint=tls:log1:9093"], "{host}"),
            (self.mktemp(), [], "cannot read"),
            (self.file("zk.digest=secret"), [], "user:password"),
        ):
            error = self.assertRaises(ConfigurationError, SecuritySettings.read, path, changes)
            self.assertIn(part, str(error))
            if "zk.digset" not in str(changes):
                self.assertNotIn("secret", str(error))
        self.assertNotIn("secret", repr(SecuritySettings.read(None, ["zk.digest=me:secret"])))

    def test_tools(self) -> None:
        """A command may have a name and a password, which producers of 0.7 do not get."""
        self.assertEqual(ToolSettings.read(None, []).saslMechanism, "SCRAM-SHA-512")
        path = self.file("sasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=secret\n")
        found = ToolSettings.read(path, [])
        self.assertEqual((found.saslUsername, found.saslPassword), ("me", "secret"))
        self.assertNotIn("secret", repr(found))
        self.assertEqual(list(found.asProperties()), ["zk.digest", "zk.acl", "broker.endpoint"])
        for change in ("sasl.username=me", "sasl.password=secret", "sasl.mechanism=GSSAPI"):
            error = self.assertRaises(ConfigurationError, ToolSettings.read, None, [change])
            self.assertNotIn("secret", str(error))

    def test_shown(self) -> None:
        """No settings show a password, wherever it came from."""
        for settings in (
            SecuritySettings,
            AuditorSettings,
            BrokerSettings,
            ConsumerSettings,
            ProducerSettings,
        ):
            values: dict[str, Any] = {
                each.name: "me:secret" if each.name == "zkDigest" else each.name
                for each in settings.keys
                if each.isEffective
            }
            self.assertIn("me:secret", values.values())
            shown = repr(settings(values))
            self.assertNotIn("secret", shown)
            self.assertIn("Acl='" if settings is not AuditorSettings else "listen", shown)

    def test_properties(self) -> None:
        """
        Producers and consumers read them back as they were, and describe them in the same words.
        """
        given = access("me:secret", "private")
        complaints: list[str] = []
        consumer = ConsumerSettings.fromProperties(
            {**given.asProperties(), "groupid": "g"}, complaints.append
        )
        producer = ProducerSettings.fromProperties(
            {**given.asProperties(), "zk.connect": "zk:1"}, complaints.append
        )
        self.assertEqual(
            (consumer.zkDigest, consumer.zkAcl, consumer.brokerEndpoint),
            ("me:secret", "private", TEMPLATE),
        )
        self.assertEqual(
            (producer.zkDigest, producer.zkAcl, producer.brokerEndpoint),
            ("me:secret", "private", TEMPLATE),
        )
        self.assertEqual(complaints, [])
        for role in (ConsumerSettings, ProducerSettings):
            docs = {key.key: key.doc for key in role.keys}
            self.assertEqual(
                [docs[key.key] for key in SecuritySettings.keys],
                [key.doc for key in SecuritySettings.keys],
            )
