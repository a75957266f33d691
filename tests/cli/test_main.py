"""Tests for L{pylogbroker.cli.main}, most of them on real processes."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger, LogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import __version__, speedups
from pylogbroker.cli.main import logObserver, main, parse, prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.records.messageset import encodeMessage
from tests.cli.commands import CommandCase, Outcome, commands, reactor


class ParserTests(SynchronousTestCase):
    """Arguments."""

    def exit(self, *arguments: str) -> tuple[object, str, str]:
        """@return: exit code; standard output; standard error."""
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            ended = self.assertRaises(SystemExit, parse, arguments)
        return ended.code, output.getvalue(), errors.getvalue()

    def test_help(self) -> None:
        """Every command has a help with an example that its own parser takes."""
        for command in commands():
            code, output, _ = self.exit(*command.split(), "--help")
            self.assertEqual(code, 0)
            examples = re.findall(
                r"pylogbroker (" + command + r"[^|\n]*)", output.partition("examples:")[2]
            )
            self.assertNotEqual(examples, [])
            for example in examples:
                parse(shlex.split(example))
        self.assertIn("examples:", self.exit("--help")[1])

    def test_helpOfNouns(self) -> None:
        """The first word of a command of two lists its commands."""
        for noun, verbs in (("perf", ("produce", "simple-consume")), ("group", ("reset",))):
            code, output, _ = self.exit(noun, "--help")
            self.assertEqual(code, 0)
            for verb in verbs:
                self.assertIn(verb, output)

    def test_version(self) -> None:
        """The version can be asked for, and whether the C speed-up runs."""
        shown = f"pylogbroker {__version__} ({speedups.description})\n"
        self.assertEqual(self.exit("--version"), (0, shown, ""))

    def test_wrong(self) -> None:
        """Wrong arguments exit with 2 and say what is wrong."""
        for arguments, reason in (
            ([], "COMMAND"),
            (["group"], "COMMAND"),
            (["consum"], "there is no command consum; did you mean consume?"),
            (["groups"], "there is no command groups; did you mean group?"),
            (["group", "rest"], "there is no command group rest; did you mean reset?"),
            (
                ["group", "xyz"],
                "there is no command group xyz; there are: delete, describe, export",
            ),
            (["prodcue"], "prodcue"),
            (["consume"], "--topic"),
            (["consume", "--topic", "a/b"], "a/b"),
            (["consume", "--topic", "t", "--offset", "-1"], "-1"),
            (["consume", "--topic", "t", "--offset", "1", "--from-beginning"], "not allowed with"),
            (["consume", "--topic", "t", "--fetch-size", "1000000000"], "1000000000"),
            (["produce", "f", "--topic", "t", "--partition", "-2"], "-2"),
            (["produce", "f", "--topic", "t", "--compression", "zip"], "zip"),
            (["demo", "--port", "65536"], "65536"),
            (["group", "describe"], "--zookeeper"),
            (["group", "describe", "a/b", "--zookeeper", "z"], "'a/b', has '/' in it"),
            (
                ["consume", "--zookeeper", "z", "--broker", "b:1", "--topic", "t"],
                "not allowed with",
            ),
            (
                ["consume", "--zookeeper", "z", "--topic", "t", "--whitelist", "t"],
                "not allowed with",
            ),
            (["consume", "--zookeeper", "z", "--topic", "a/b"], "a/b"),
            (
                ["consume", "--zookeeper", "z", "--topic", "t", "--group", "a/b"],
                "'a/b', has '/' in it",
            ),
            (
                ["consume", "--zookeeper", "z", "--whitelist", "[a[b]]"],
                "a character class inside another, which only Java knows",
            ),
            (
                ["consume", "--zookeeper", "z", "--blacklist", r"\p{javaUpperCase}"],
                "has the escape \\p",
            ),
            (
                ["produce", "f", "--topic", "t", "--zookeeper", "z", "--key-separator", ""],
                "separates nothing",
            ),
            (["zookeeper"], "--data"),
            (["dev", "--zookeeper-port", "-1"], "-1"),
        ):
            code, _, errors = self.exit(*arguments)
            self.assertEqual(code, 2)
            self.assertIn(reason, errors)

    def test_together(self) -> None:
        """What does not belong together exits with 2 and says why, before anything is opened."""
        for arguments, reason in (
            (["consume", "--topic", "t", "--group", "g", "--follow"], "--group: needs --zookeeper"),
            (["consume", "--whitelist", "t", "--follow"], "--whitelist: needs --zookeeper"),
            (
                ["consume", "--topic", "t", "--skip-message-on-error", "--follow"],
                "--skip-message-on-error: needs --zookeeper",
            ),
            (
                [
                    "consume",
                    "--zookeeper",
                    "z",
                    "--topic",
                    "t",
                    "--partition",
                    "0",
                    "--offset",
                    "0",
                ],
                "--partition, --offset: not with --zookeeper",
            ),
            (["consume", "--zookeeper", "z", "--topic", "t"], "or the --group that was there"),
            (
                ["produce", "/nonexistent", "--topic", "t", "--key-separator", ":"],
                "--key-separator: needs --zookeeper",
            ),
            (
                ["produce", "/nonexistent", "--topic", "t", "--zookeeper", "z", "--partition", "1"],
                "--partition: not with --zookeeper",
            ),
        ):
            errors = io.StringIO()
            with redirect_stderr(errors):
                ended = self.assertRaises(
                    SystemExit, prepare, arguments, Streams(0, 1, io.StringIO())
                )
            self.assertEqual(ended.code, 2)
            self.assertIn(reason, errors.getvalue())

    def test_twoWords(self) -> None:
        """A command of two words is a noun and a verb, whatever names stand behind it."""
        self.assertEqual(
            parse(["group", "export", "--zookeeper", "z"]).command.name, "group export"
        )
        self.assertEqual(
            parse(["group", "describe", "counters", "--zookeeper", "z"]).groups, ["counters"]
        )
        self.assertEqual(
            parse(["group", "describe", "--zookeeper", "z", "export"]).groups, ["export"]
        )

    def test_prepared(self) -> None:
        """Some commands need no reactor."""
        streams = Streams(0, 1, io.StringIO())
        self.assertTrue(prepare(["dump", "x"], streams).command.isBlocking)
        self.assertFalse(prepare(["offset", "list", "--topic", "x"], streams).command.isBlocking)


class ImportTests(SynchronousTestCase):
    """What a command's process imports, and when it looks for garbage."""

    def python(self, *arguments: str, show: str) -> str:
        """Run the program, and print an expression then."""
        code = (
            "import gc, sys\n"
            "from pylogbroker.__main__ import main\n"
            f"sys.argv = ['pylogbroker', *{arguments!r}]\n"
            "try: code = main()\n"
            "except SystemExit as error: code = error.code\n"
            f"print({show})"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]

    def test_ownModule(self) -> None:
        """
        A command imports its own module only: C{dev} no producer, no consumer, no kazoo and no
        ZooKeeper server.
        """
        prefix = "pylogbroker.cli.commands."
        self.assertEqual(
            self.python("dev", "--help", show=f"[x for x in sys.modules if {prefix!r} in x]"),
            str([prefix + "dev"]),
        )
        others = (
            "kazoo",
            "twisted.web.client",
            "pylogbroker.producer",
            "pylogbroker.consumer",
            "pylogbroker.zookeeper.server",
        )
        self.assertEqual(
            self.python("dev", "--help", show=f"[x for x in {others!r} if x in sys.modules]"), "[]"
        )

    def test_garbage(self) -> None:
        """Garbage is looked for when the command runs, and not in what was imported."""
        missing = os.path.abspath(self.mktemp())
        self.assertEqual(
            self.python("dump", missing, show="code, gc.isenabled(), gc.get_freeze_count() > 0"),
            "1 True True",
        )


class ReporterTests(SynchronousTestCase):
    """What a person is told of the log."""

    def test_events(self) -> None:
        """
        Warnings are a line; failures of the program have a traceback; what is less is not shown.
        """
        errors = io.StringIO()
        log = Logger(observer=LogPublisher(logObserver(Streams(0, 1, errors))))
        log.info("nothing")
        log.warn("careful with {what}", what="that")
        self.assertEqual(errors.getvalue(), "pylogbroker: careful with that\n")
        try:
            raise ValueError("bug")
        except ValueError:
            log.failure("broken")
        self.assertIn("pylogbroker: broken\nTraceback", errors.getvalue())


class MainTests(SynchronousTestCase):
    """C{main} without a reactor."""

    def test_dump(self) -> None:
        """C{dump} gives its exit code back; what a person did wrong is said in a line."""
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(encodeMessage(b"a"))
        errors = io.StringIO()
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        saved = os.dup(1)
        os.dup2(sink, 1)
        try:
            with redirect_stderr(errors):
                codes = (
                    main(["dump", "--no-print", path]),
                    main(["produce", "/nonexistent", "--topic", "t"]),
                )
        finally:
            os.dup2(saved, 1)
            os.close(saved)
            os.close(sink)
        self.assertEqual(codes, (0, 1))
        self.assertEqual(
            errors.getvalue().splitlines()[-1],
            "pylogbroker: cannot read '/nonexistent': No such file or directory",
        )
        self.assertIn(b"isvalid: true", os.read(source, 10_000))

    def test_interrupted(self) -> None:
        """
        Ctrl-C ends the waiting for the writer of a named pipe, for which there is no reactor yet.
        """
        path = self.mktemp()
        os.mkfifo(path)

        def interrupt(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        self.assertEqual(main(["produce", path, "--topic", "t"]), 130)


class ProcessTests(CommandCase):
    """The command as a process."""

    async def exits(self, *arguments: str) -> Outcome:
        return await self.spawn(*arguments)[0].ended

    async def test_roundTrip(self) -> None:
        """
        What C{produce} publishes, C{consume} prints, and C{offsets} and C{dump} see; a file comes
        back byte for byte.
        """
        broker = await self.startBroker()
        place = ("--broker", broker.endpoint, "--topic", "t")
        data = b"".join(b"%d \xff\x00\r\n" % index for index in range(3000))
        result = await self.exits("produce", self.write(data), *place)
        self.assertEqual((result.code, result.output), (0, b""))
        self.assertEqual((await self.exits("consume", "--from-beginning", *place))[:2], (0, data))
        size = len(data) + 9 * 3000
        self.assertEqual(await self.exits("offset", "list", *place), Outcome(0, b"%d\n" % size, ""))
        result = await self.exits(
            "dump", "--no-print", os.path.join(broker.directory, "t-0", "0" * 20 + ".kafka")
        )
        self.assertEqual(
            (result.code, result.output.splitlines()[-1]),
            (0, b"tail of the log is at offset: %d" % size),
        )

    async def test_standardInput(self) -> None:
        """Standard input is published to its end."""
        broker = await self.startBroker()
        protocol, process = self.spawn("produce", "-", "--broker", broker.endpoint, "--topic", "t")
        process.write(b"one\ntwo")
        process.closeStdin()
        self.assertEqual((await protocol.ended).code, 0)
        self.assertEqual(await self.messages("t"), [b"one", b"two"])

    async def test_demo(self) -> None:
        """The demo works, and shows what the broker warns of."""
        result = await self.exits(
            "demo", self.write(b"one\ntwo\n"), "--set", "log.flush.interval=1", "--set", "prot=1"
        )
        self.assertEqual(result.code, 0)
        self.assertEqual(
            result.errors,
            "pylogbroker: --set: prot=1: there is no such key and it has no effect; did you mean"
            " port?\n",
        )
        self.assertIn(b"byte for byte", result.output)

    async def test_errors(self) -> None:
        """Errors are a line on standard error, without a traceback, and exit code 1."""
        for arguments in (
            (
                "consume",
                "--topic",
                "t",
                "--from-beginning",
                "--broker",
                "127.0.0.1:1",
                "--timeout-ms",
                "100",
            ),
            ("produce", "/nonexistent", "--topic", "t"),
            ("offset", "list", "--topic", "t", "--broker", "nonsense"),
            ("dump", "/nonexistent"),
            ("demo", "/nonexistent"),
            ("demo", "--config", "/nonexistent"),
        ):
            result = await self.exits(*arguments)
            self.assertEqual((result.code, result.output), (1, b""), result.errors)
            self.assertRegex(
                result.errors, "^(pylogbroker: No connection to .* yet, .*\n)?pylogbroker: .*\n$"
            )

    async def test_interruptFollow(self) -> None:
        """Ctrl-C is how C{consume --follow} ends: exit code 0, what was read is said."""
        broker = await self.startBroker()
        await self.publish("t", b"one")
        for number in (signal.SIGINT, signal.SIGTERM):
            protocol, process = self.spawn(
                "consume", "--offset", "0", "--follow", "--broker", broker.endpoint, "--topic", "t"
            )
            await protocol.said(b"one\n")
            process.signalProcess(number)
            self.assertEqual(
                await protocol.ended,
                Outcome(0, b"one\n", "read 1 message; the next offset is 13\n"),
            )

    async def test_interrupt(self) -> None:
        """
        A command that was not done exits with 130 after Ctrl-C and with 143 after SIGTERM, as a
        shell expects.
        """
        broker = await self.startBroker()
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            protocol, process = self.spawn(
                "produce", "-", "--broker", broker.endpoint, "--topic", number.name
            )
            process.write(b"one\n")
            while not await self.messages(number.name):
                await deferLater(reactor, 0.01)
            process.signalProcess(number)
            self.assertEqual(await protocol.ended, Outcome(code, b"", "ended after 1 message\n"))

    async def test_interruptDemo(self) -> None:
        """
        A demo that is ended stops its broker and leaves nothing behind, also when the signal comes
        twice, as from C{timeout}.
        """
        protocol, process = self.spawn(
            "demo",
            self.write(b"one\n"),
            "--set",
            "log.flush.interval=1000",
            "--set",
            "log.default.flush.interval.ms=60000",
        )
        await protocol.said(b"published")
        [directory] = re.findall(rb"data in (\S+)", protocol.output)
        self.assertTrue(os.path.isdir(directory))
        process.signalProcess("INT")
        process.signalProcess("INT")
        self.assertEqual((await protocol.ended).code, 130)
        self.assertFalse(os.path.exists(directory))

    async def test_brokenPipe(self) -> None:
        """Whoever reads the output may leave: exit code 0, without a word about it."""
        broker = await self.startBroker()
        await self.publish("t", *[b"x" * 1000] * 1000)
        path = self.write(encodeMessage(b"x" * 1000) * 1000)
        for arguments in (
            ("consume", "--from-beginning", "--broker", broker.endpoint, "--topic", "t"),
            ("dump", path),
        ):
            protocol, process = self.spawn(*arguments)
            await protocol.said(b"xxx")
            process.closeStdout()
            result = await protocol.ended
            self.assertEqual(result.code, 0)
            self.assertNotIn("Broken", result.errors)

    async def test_impatience(self) -> None:
        """Who sends a second signal after a while does not wait for an orderly end."""
        protocol, process = self.spawn(
            "produce", "-", "--topic", "t", "--broker", self.startSilent()
        )
        process.write(b"one\n")
        await self.got.get()
        process.signalProcess("INT")
        await protocol.said(b"ended after 1 message\n")

        def again() -> None:
            if not protocol.ended.called:
                process.signalProcess("INT")

        repeating = LoopingCall(again)
        self.addCleanup(repeating.stop)
        repeating.start(0.05)
        self.assertEqual((await protocol.ended).code, -signal.SIGINT)
