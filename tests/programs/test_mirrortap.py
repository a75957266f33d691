"""
Tests of C{twistd pylogbroker-mirror}: its options. The process is tested in
C{tests.integration.test_mirror}.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.mirror.service import MirrorService
from pylogbroker.programs import mirrortap
from pylogbroker.programs.mirrortap import Options, makeService
from tests.integration.brokerprocess import ROOT


class OptionsTests(SynchronousTestCase):
    """What is said on the command line (row 132)."""

    def setUp(self) -> None:
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        self.files = {}
        for name, connect in (("one", "a"), ("two", "b"), ("target", "c")):
            self.files[name] = str(folder / f"{name}.properties")
            Path(self.files[name]).write_text(
                f"zk.connect={connect}:2181\n" + ("" if name == "target" else "groupid=g\n"),
                encoding="utf-8",
            )
        self.needed = ["--consumer", self.files["one"], "--producer", self.files["target"]]

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions([*self.needed, *arguments])
        return options

    def fails(self, *arguments: str) -> str:
        return str(self.assertRaises(usage.UsageError, Options().parseOptions, list(arguments)))

    def test_all(self) -> None:
        """Several sources, a target, a pattern, and how many of each."""
        settings = self.parse(
            "-c",
            self.files["two"],
            "--whitelist",
            "a,b",
            "--num-streams",
            "3",
            "--num-producers=2",
            "--keep-partitions",
        ).settings
        addresses = [
            each.zkConnect for each in settings.consumers if isinstance(each, ConsumerSettings)
        ]
        self.assertEqual(addresses, ["a:2181", "b:2181"])
        assert isinstance(settings.producer, ProducerSettings)
        self.assertEqual(
            (settings.producer.zkConnect, settings.topics.pattern, settings.topics.isWhite),
            ("c:2181", "a|b", True),
        )
        self.assertEqual(
            (settings.streamCount, settings.producerCount, settings.isKeeping), (3, 2, True)
        )

    def test_blacklist(self) -> None:
        """All but these."""
        settings = self.parse("--blacklist", "a").settings
        self.assertEqual(
            (
                settings.topics.isWhite,
                settings.streamCount,
                settings.producerCount,
                settings.isKeeping,
            ),
            (False, 1, 1, False),
        )

    def test_wrong(self) -> None:
        """What is missing or wrong is an error of usage."""
        self.assertIn("are needed", self.fails("--whitelist", "a"))
        self.assertIn("are needed", self.fails("--whitelist", "a", "--consumer", self.files["one"]))
        self.assertIn("either --whitelist or --blacklist", self.fails(*self.needed))
        self.assertIn(
            "either --whitelist or --blacklist",
            self.fails(*self.needed, "--whitelist", "a", "--blacklist", "b"),
        )
        self.assertIn("pattern", self.fails(*self.needed, "--whitelist", "("))
        self.assertIn(
            "No such file",
            self.fails(*self.needed, "--consumer", "/nowhere.properties", "--whitelist", "a"),
        )
        self.assertIn(
            "0 streams", self.fails(*self.needed, "--whitelist", "a", "--num-streams", "0")
        )

    def test_warning(self) -> None:
        """What is odd is said on standard error."""
        lines: list[str] = []

        class Out:
            write = staticmethod(lines.append)

        self.patch(sys, "stderr", Out)
        Path(self.files["one"]).write_text(
            "zk.connect=a:2181\ngroupid=g\nfetch.sise=5\n", encoding="utf-8"
        )
        self.parse("--whitelist", "a")
        self.assertTrue(lines[0].startswith("pylogbroker: "), lines)

    def test_service(self) -> None:
        """What twistd is given is a mirror."""
        service: Any = makeService(self.parse("--whitelist", "a"))
        self.assertIsInstance(service, MirrorService)
        self.assertEqual((service.name, service.running), ("pylogbroker-mirror", 0))

    def test_figures(self) -> None:
        """
        Figures are served where C{--listen} says, to who asks by a name that is known; without it,
        nowhere.
        """
        service: Any = makeService(
            self.parse("--whitelist", "a", "--listen", "0", "--host", "mirror.example")
        )
        self.assertEqual(
            (set(service.site.web.routes), service.site.web.names),
            ({"/metrics"}, {"mirror.example"}),
        )
        self.assertIs(makeService(self.parse("--whitelist", "a", "--listen", " ")).site, None)  # type: ignore[attr-defined]

    def test_plugin(self) -> None:
        """twistd finds it by its name, with this module behind it."""
        from twisted.application.service import IServiceMaker
        from twisted.plugin import getPlugins

        import twisted.plugins

        sys.path.insert(0, str(ROOT))
        self.addCleanup(sys.path.remove, str(ROOT))
        self.patch(
            twisted.plugins,
            "__path__",
            [*twisted.plugins.__path__, str(ROOT / "twisted" / "plugins")],
        )
        makers: dict[str, Any] = {
            each.tapname: each for each in getPlugins(IServiceMaker, twisted.plugins)
        }
        self.patch(gc, "freeze", lambda: None)  # what other tests have made must not stay
        self.assertEqual(
            (makers["pylogbroker-mirror"].module, makers["pylogbroker-mirror"].options),
            ("pylogbroker.programs.mirrortap", Options),
        )
        self.assertIs(makers["pylogbroker-mirror"].makeService, mirrortap.makeService)
