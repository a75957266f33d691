"""Listeners, as Kafka's settings name them."""

from __future__ import annotations

from pylogbroker.config.listenersettings import (
    Listener,
    TlsStores,
    interBrokerListener,
    readListeners,
)
from tests.config.test_brokersettings import SettingsCase

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class ListenersCase(SettingsCase):
    """Reads listeners."""

    def listeners(self, *lines: str) -> tuple[Listener, ...]:
        return readListeners(self.read("\n".join(lines)))

    def wrong(self, *lines: str) -> str:
        return self.refused("\n".join(lines))


class AddressTests(ListenersCase):
    """Where a broker listens, and what it tells its clients."""

    def test_default(self) -> None:
        """Without C{listeners} there is one without protection, on 0.7's port."""
        (found,) = self.listeners()
        self.assertEqual(found, Listener(endpoint="tcp:6667"))
        self.assertEqual((found.isTls, found.isSasl, str(found)), (False, False, "tcp:6667"))

    def test_kafkas(self) -> None:
        """Names are in capital letters; an address of all interfaces is advertised to nobody."""
        inside, outside, other = self.listeners(
            "listeners=inside://10.0.0.5:9092, OUTSIDE://[::1]:0,REST://0.0.0.0:9094",
            "advertised.listeners=outside://log1.example.org:9093",
            "listener.security.protocol.map=INSIDE:plaintext,outside:PLAINTEXT,REST:PLAINTEXT",
        )
        self.assertEqual(
            inside,
            Listener("INSIDE", "", "10.0.0.5", 9092, advertisedHost="10.0.0.5"),
        )
        self.assertEqual(
            outside,
            Listener(
                "OUTSIDE",
                interface="::1",
                advertisedHost="log1.example.org",
                advertisedPort=9093,
            ),
        )
        self.assertEqual(other, Listener("REST", "", "0.0.0.0", 9094))
        self.assertEqual(str(other), "REST://0.0.0.0:9094")

    def test_endpointStrings(self) -> None:
        """Twisted's endpoint strings have the names of their protocols."""
        plain, secure, local = self.listeners(
            "listeners=tcp:1|tls:2:privateKey=a,b://c:3|unix:///tmp/socket"
        )
        self.assertEqual((plain.name, plain.protocol), ("PLAINTEXT", "PLAINTEXT"))
        self.assertEqual((secure.name, secure.isTls, secure.stores), ("SSL", True, None))
        self.assertEqual(local.endpoint, "unix:///tmp/socket")

    def test_advertisedWithoutListeners(self) -> None:
        """The default listener can be advertised elsewhere, too."""
        (found,) = self.listeners("advertised.listeners=PLAINTEXT://log1:9092")
        self.assertEqual((found.advertisedHost, found.advertisedPort), ("log1", 9092))

    def test_dialects(self) -> None:
        """Each listener may speak its own protocol."""
        first, second = self.listeners(
            "listeners=A://:1,B://:2",
            "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
            "listener.dialect=kafka",
            "listener.name.b.listener.dialect=kafka07",
        )
        self.assertEqual((first.dialect, second.dialect), ("kafka", "kafka07"))

    def test_wrong(self) -> None:
        """Settings that contradict each other are refused, and why."""
        for lines, reason in (
            (("listeners=X://:1",), "no protocol for the listener X"),
            (("listeners=SSL://a:b:1",), "'SSL://a:b:1' is not NAME://HOST:PORT"),
            (("listeners=PLAINTEXT://:65536",), "is not NAME://HOST:PORT"),
            (("listeners=PLAINTEXT://:1,plaintext://:2",), "PLAINTEXT is there twice"),
            (("advertised.listeners=PLAINTEXT://0.0.0.0:1",), "no client can reach"),
            (("advertised.listeners=PLAINTEXT://a:0",), "no client can reach"),
            (("advertised.listeners=a:1",), "is not NAME://HOST:PORT"),
            (("advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:1",), "is there twice"),
            (("advertised.listeners=OTHER://a:1",), "there is no listener OTHER"),
            (("listener.security.protocol.map=A",), "'A' is not NAME:PROTOCOL"),
            (("listener.security.protocol.map=A:TLS",), "'A:TLS' is not NAME:PROTOCOL"),
            (("listener.security.protocol.map=PLAINTEXT:SSL",), "and 'tcp:6667' is not"),
            (("listener.name.plaintext.listener.dialect=x",), "must be one of"),
        ):
            self.assertIn(reason, self.wrong(*lines))

    def test_withoutEffect(self) -> None:
        """A key of no listener, and an unknown key of one, are reported."""
        self.read("listener.name.other.ssl.client.auth=none\nlistener.name.plaintext.x=secret")
        self.assertEqual(
            self.warnings,
            [
                f"listener.name.{key}: there is no such listener or key: it has no effect"
                for key in ("other.ssl.client.auth", "plaintext.x")
            ],
        )


class TlsSettingsTests(ListenersCase):
    """Keys and certificates."""

    def test_files(self) -> None:
        """A listener has those of all, but for what is its own."""
        first, second = self.listeners(
            "listeners=SSL://:1,B://:2",
            "listener.security.protocol.map=SSL:SSL,B:SASL_SSL",
            "ssl.keystore.location=key.pem",
            "ssl.client.auth=required",
            "ssl.truststore.location=ca.pem",
            "listener.name.b.ssl.keystore.location=b.pem",
        )
        self.assertEqual(
            first.stores,
            TlsStores("key.pem", authoritiesLocation="ca.pem", clientAuth="required"),
        )
        stores = second.stores
        assert stores is not None
        self.assertEqual((stores.location, stores.clientAuth), ("b.pem", "none"))

    def test_principalRules(self) -> None:
        """Rules for names hold for all listeners but those that have their own."""
        found = self.listeners(
            "listeners=SSL://:1,B://:2,PLAINTEXT://:3",
            "listener.security.protocol.map=SSL:SSL,B:SSL,PLAINTEXT:PLAINTEXT",
            "ssl.keystore.location=key.pem",
            "ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/,DEFAULT",
            "listener.name.b.ssl.principal.mapping.rules=DEFAULT",
        )
        rules = [each.principalRules for each in found[:2]]
        self.assertEqual(rules, ["RULE:^CN=(.*?),.*$/$1/,DEFAULT", "DEFAULT"])

    def test_certificatesOfSaslClients(self) -> None:
        """Where clients have SASL, certificates are asked for where the listener's own key says."""
        (found,) = self.listeners(
            "listeners=SASL_SSL://:1",
            "ssl.keystore.location=key.pem",
            "ssl.truststore.certificates=text",
            "listener.name.sasl_ssl.ssl.client.auth=requested",
        )
        assert found.stores is not None
        self.assertEqual(found.stores.clientAuth, "requested")

    def test_texts(self) -> None:
        """The key may stand in the file; nothing shows it."""
        settings = self.read(
            "listeners=SSL://:1\nssl.keystore.key=KEY\nssl.keystore.certificate.chain=CHAIN\n"
            "ssl.key.password=PASSWORD"
        )
        (found,) = readListeners(settings)
        self.assertEqual(found.stores, TlsStores(key="KEY", chain="CHAIN", keyPassword="PASSWORD"))
        for text in (repr(found), repr(settings)):
            self.assertNotIn("KEY'", text)
            self.assertNotIn("PASSWORD", text)

    def test_wrong(self) -> None:
        """What is missing, or cannot be read, is said."""
        tls = "listeners=SSL://:1"
        for lines, reason in (
            ((tls,), "SSL has TLS: it needs either ssl.keystore.location"),
            ((tls, "ssl.keystore.key=x"), "it needs either ssl.keystore.location"),
            (
                (
                    tls,
                    "ssl.keystore.key=x",
                    "ssl.keystore.certificate.chain=x",
                    "ssl.keystore.location=x",
                ),
                "it needs either ssl.keystore.location",
            ),
            (
                (tls, "ssl.keystore.location=x", "ssl.client.auth=required"),
                "ssl.client.auth=required needs ssl.truststore.location (SSL)",
            ),
            ((tls, "ssl.keystore.type=JKS"), "only PEM can be read here"),
            ((tls, "ssl.keystore.type=x"), "must be one of PEM"),
            (
                (tls, "ssl.keystore.location=x", "listener.name.ssl.ssl.truststore.type=PKCS12"),
                "listener.name.ssl.ssl.truststore.type: only PEM",
            ),
        ):
            self.assertIn(reason, self.wrong(*lines))


class SaslSettingsTests(ListenersCase):
    """Mechanisms and users."""

    def sasl(self, *lines: str) -> Listener:
        (found,) = self.listeners("listeners=SASL_PLAINTEXT://:1", *lines)
        return found

    def test_default(self) -> None:
        """Both forms of SCRAM; authentication holds for ever; the protocol is today's."""
        found = self.sasl()
        self.assertEqual(found.mechanisms, ("SCRAM-SHA-256", "SCRAM-SHA-512"))
        self.assertEqual((found.maxReauthMs, found.dialect, found.isSasl), (0, "kafka", True))

    def test_users(self) -> None:
        """The users of PLAIN stand in a module's options; nothing shows their passwords."""
        key = "listener.name.sasl_plaintext"
        found = self.sasl(
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
            "connections.max.reauth.ms=5",
            f"{key}.connections.max.reauth.ms=7",
            f'{key}.plain.sasl.jaas.config={PLAIN_MODULE} required username="a"'
            ' user_a="b;c = \\\\"d" user_e@f=g ;',
            f"{key}.scram-sha-256.sasl.jaas.config={SCRAM_MODULE} required;",
        )
        self.assertEqual(found.plainUsers, {"a": 'b;c = "d', "e@f": "g"})
        self.assertEqual((found.maxReauthMs, self.warnings), (7, []))
        self.assertNotIn("b;c", repr(found))

    def test_wrong(self) -> None:
        """What is wrong is said, without the passwords."""
        key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
        plain = "sasl.enabled.mechanisms=PLAIN"
        for lines, reason in (
            (("sasl.enabled.mechanisms=GSSAPI",), "GSSAPI is none of PLAIN"),
            (("listener.dialect=kafka07",), "SASL_PLAINTEXT has SASL, which kafka07 does not know"),
            ((plain, f'{key}={PLAIN_MODULE} required user_a="secret"'), "is not MODULE required"),
            ((plain, f'{key}=a.B required user_a="secret";'), f"a.B is not {PLAIN_MODULE}"),
        ):
            found = self.wrong("listeners=SASL_PLAINTEXT://:1", *lines)
            self.assertIn(reason, found)
            self.assertNotIn("secret", found)


class InterBrokerTests(ListenersCase):
    """The listener by which brokers reach one another."""

    LISTENERS = (
        "listeners=OLD://:1,INSIDE://:2,OUTSIDE://:3",
        "listener.security.protocol.map=OLD:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "listener.name.old.listener.dialect=kafka07",
    )

    def chosen(self, *lines: str) -> Listener | None:
        settings = self.read("\n".join(lines))
        return interBrokerListener(settings, readListeners(settings))

    def test_default(self) -> None:
        """The first one that speaks today's protocol; there may be none."""
        found = self.chosen(*self.LISTENERS)
        assert found is not None
        self.assertEqual(found.name, "INSIDE")
        self.assertIsNone(self.chosen("listener.dialect=kafka07"))

    def test_named(self) -> None:
        """By its name, or by its protocol."""
        for line in (
            "inter.broker.listener.name=outside",
            "security.inter.broker.protocol=SASL_PLAINTEXT",
        ):
            found = self.chosen(*self.LISTENERS, line)
            assert found is not None
            self.assertEqual(found.name, "OUTSIDE")

    def test_wrong(self) -> None:
        """A listener that is not there, or speaks only 2011's protocol; two keys."""
        name, protocol = "inter.broker.listener.name", "security.inter.broker.protocol"
        for lines, reason in (
            ((f"{name}=NONE",), f"{name}=NONE: there is no such listener"),
            ((f"{protocol}=SSL",), f"{protocol}=SSL: there is no such listener"),
            ((f"{name}=OLD",), "must speak Kafka's current protocol"),
            ((f"{name}=INSIDE", f"{protocol}=PLAINTEXT"), "exclude each other"),
        ):
            self.assertIn(reason, self.wrong(*self.LISTENERS, *lines))

    def test_logins(self) -> None:
        """What this broker is called elsewhere stands beside the users, and is not shown."""
        key = "listener.name.sasl_plaintext"
        found = self.chosen(
            "listeners=SASL_PLAINTEXT://:1",
            f'{key}.scram-sha-512.sasl.jaas.config={SCRAM_MODULE} required username="b1"'
            ' password="secret";',
        )
        assert found is not None
        self.assertEqual(found.logins, {"SCRAM-SHA-512": ("b1", "secret")})
        self.assertNotIn("secret", repr(found))
