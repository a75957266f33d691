r"""
Names of clients from the subjects of their certificates. The expected names and refusals are those
of C{SslPrincipalMapper} of Kafka 4.3.1, but where a test says otherwise.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.security.principalmapper import NoMatchingRuleError, PrincipalMapper
from pylogbroker.errors import ConfigurationError

DUKE = "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"
RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L ,"
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT,"
)


def nameOf(rules: str, subject: str) -> str:
    return PrincipalMapper.fromText("key", rules).name(subject)


class MappingTests(SynchronousTestCase):
    """L{PrincipalMapper}."""

    def test_first(self) -> None:
        """The first rule that applies gives the name."""
        for subject, expected in (
            ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
            (DUKE, "duke@sme"),
            ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
            ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
            ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ):
            self.assertEqual(nameOf(RULES, subject), expected)

    def test_replaced(self) -> None:
        """Every match is replaced, also an empty one; slashes and dollar signs can be written."""
        for rule, subject, expected in (
            (r"^CN=((\\, *|\w)+)(,.*|$)/$1/", r"CN=Tkac\, Adam,OU=ITZ,DC=cz", r"Tkac\, Adam"),
            ("CN=(.*?)/<$1>/", "CN=a", "<>a"),
            (".*/x/", "CN=a", "xx"),
            (".*/x/", "", "x"),
            ("(CN=)?(.*?)/[$1$2]/", "CN=a", "[CN=][]a[]"),
            ("CN=(.*)|(.*)/$2-$1/", "O=b", "O=b--"),
            ("(C)(N)(.*)/$3$4$12$01$10/", "CN=a", "=a$4C2CC0"),
            ("(.*)/<$1$2>/", "CN=a", "<CN=a$2><$2>"),
            (".*/$0/U", "CN=\u00e9", "CN=\u00c9"),
            (r"C.(=a\/b)/\/\$1\\$1/L", "CN=a/b", r"/$1\=a/b"),
            (",O=.*//", ",O=b", ""),
        ):
            self.assertEqual(nameOf(f"RULE:{rule}", subject), expected, rule)

    def test_none(self) -> None:
        """A subject to which no rule applies has no name; a pattern must match it whole."""
        for rules in ("RULE:CN=a/x/", "RULE:N=.*/x/,,", "", " , "):
            self.assertRaises(NoMatchingRuleError, nameOf, rules, DUKE)

    def test_lineBreaks(self) -> None:
        """Only C{DEFAULT} applies to a subject with a line break, whatever a pattern says."""
        for character in "\n\r\x85\u2028\u2029":
            subject = f"CN=a{character},OU=admins"
            self.assertRaises(NoMatchingRuleError, nameOf, "RULE:[^,]*(,.*)/$1/", subject)
            self.assertEqual(nameOf("RULE:[^,]*(,.*)/$1/,DEFAULT", subject), subject)

    def test_refused(self) -> None:
        """What is no list of rules is refused, and the text says where."""
        for rules in (
            "default",
            "DEFAUL",
            "DEFAULT/L",
            "DEFAULT x",
            "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
            "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
            "RULE:.*/x/Q",
            "DEFAULT,RULE:(/x/",
            r"RULE:.*/a\/",
        ):
            error = self.assertRaises(ConfigurationError, nameOf, rules, DUKE)
            self.assertIn("key: ", str(error))

    def test_refusedAtTheStart(self) -> None:
        """What Kafka refuses when a client comes, or matches in unbounded time, is refused here."""
        for rule, text in (
            (".*/$1/", "no group for $1"),
            (".*/$/", "$ at the wrong place"),
            (".*/${x}/", "$ at the wrong place"),
            (r"(.)\1/x/", "unbounded time"),
        ):
            error = self.assertRaises(ConfigurationError, nameOf, f"RULE:{rule}", DUKE)
            self.assertIn(text, str(error))
