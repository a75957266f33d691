"""Tests for L{pylogbroker.tasks.job}."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import (
    DEAD_LETTER,
    MEMORY,
    STOP,
    Input,
    Job,
    Output,
    Repartition,
    Store,
    loadJobs,
)
from pylogbroker.tasks.serdes import BYTES

NAME_RULE = "a name has 1 to 180 of A-Z a-z 0-9 . _ -"
TOPIC_RULE = NAME_RULE.replace("180", "249")


class Idle(StreamTask):
    """Does nothing."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Nothing."""


class Waiting(StreamTask):
    """Has a coroutine function."""

    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Nothing."""


class ClosedLater(Idle):
    """Has one that is not C{process}."""

    async def close(self) -> None:
        """Nothing."""


def makeJob(**changes: Any) -> Job:
    """A job that is in order, but for C{changes}."""
    given: dict[str, Any] = {"name": "j", "task": Idle, "inputs": [Input("in")], **changes}
    return Job(**given)


class CheckTests(SynchronousTestCase):
    """A job is checked when it is made."""

    def assertRefused(self, text: str, **changes: Any) -> None:
        """Such a job is not made; the error has this text."""
        with self.assertRaises(ConfigurationError) as caught:
            makeJob(**changes)
        self.assertEqual(str(caught.exception), text)

    def test_inOrder(self) -> None:
        """What is left out has defaults; what can be run through once is kept."""
        job = makeJob(
            inputs=iter([Input("a"), Input("b")]),
            outputs=iter([Output("c")]),
            stores=iter([Store("s"), Store("t", changelog="u")]),
        )
        self.assertEqual([each.topic for each in job.inputs], ["a", "b"])
        self.assertEqual([each.topic for each in job.outputs], ["c"])
        self.assertEqual([job.changelogOf(each) for each in job.stores], ["j-s-changelog", "u"])
        self.assertEqual(job.deadLetters, "j-dead-letters")
        self.assertEqual((job.windowMs, job.onError, dict(job.config)), (0, STOP, {}))
        self.assertEqual(next(iter(job.inputs)).key, BYTES)

    def test_names(self) -> None:
        """Names that can be no topic's or folder's are refused."""
        for name in ("", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 181, None):
            self.assertRefused(f"job {name}: job {name!r}: {NAME_RULE}", name=name)
        self.assertRefused(f"job j: store '..': {NAME_RULE}", stores=[Store("..")])
        self.assertRefused(f"job j: input '': {TOPIC_RULE}", inputs=[Input("")])
        self.assertRefused(f"job j: output 'a b': {TOPIC_RULE}", outputs=[Output("a b")])
        self.assertRefused(
            f"job j: changelog 'a/b': {TOPIC_RULE}", stores=[Store("s", changelog="a/b")]
        )
        self.assertRefused(f"job j: dead-letter topic '*': {TOPIC_RULE}", deadLetterTopic="*")
        self.assertRefused(
            f"job j: repartition 'a/b': {NAME_RULE}", repartitions=[Repartition("a/b")]
        )

    def test_longNames(self) -> None:
        """A topic whose name comes from others may be longer than they; not than Kafka's topics."""
        makeJob(name="A-z_0.9" + "x" * 173, inputs=[Input("x" * 249)])
        job, store = "j" * 160, "s" * 78
        makeJob(name=job, stores=[Store(store)])
        name = f"{job}-{store}s-changelog"
        self.assertRefused(
            f"job {job}: changelog {name!r}: {TOPIC_RULE}", name=job, stores=[Store(store + "s")]
        )
        topic = f"{job}-{store}-repartition"
        self.assertRefused(
            f"job {job}: repartition topic {topic!r}: {TOPIC_RULE}",
            name=job,
            repartitions=[Repartition(store)],
        )
        with self.assertRaises(ConfigurationError) as caught:
            makeJob(outputs=[Output("o" * 247)]).renamed("v2")
        self.assertIn(TOPIC_RULE, str(caught.exception))

    def test_twice(self) -> None:
        """What is there twice is refused."""
        self.assertRefused("job j: input a is there twice", inputs=[Input("a"), Input("a")])
        self.assertRefused("job j: output a is there twice", outputs=[Output("a"), Output("a")])
        self.assertRefused("job j: store s is there twice", stores=[Store("s"), Store("s")])
        self.assertRefused(
            "job j: repartition r is there twice", repartitions=[Repartition("r"), Repartition("r")]
        )
        self.assertRefused(
            "job j: changelog j-s-changelog is there twice",
            stores=[Store("s"), Store("t", changelog="j-s-changelog")],
        )

    def test_values(self) -> None:
        """Words and numbers that mean nothing are refused."""
        self.assertRefused("job j: it has no input", inputs=[])
        self.assertRefused(
            "job j: it has no input that is divided among its tasks",
            inputs=[Input("in", isBroadcast=True)],
        )
        self.assertRefused(
            "job j: onError='retry' is none of stop, skip, dead-letter", onError="retry"
        )
        self.assertRefused("job j: windowMs=-1 is negative", windowMs=-1)
        self.assertRefused(
            "job j, store s: engine 'disk' is none of rocksdb, memory",
            stores=[Store("r", engine=MEMORY), Store("s", engine="disk")],
        )

    def test_loops(self) -> None:
        """A job does not read what it writes."""
        text = "job j: it reads topic in, and writes it: it would have no end"
        self.assertRefused(text, outputs=[Output("in")])
        self.assertRefused(text, stores=[Store("s", changelog="in")])
        self.assertRefused(text, deadLetterTopic="in", onError=DEAD_LETTER)
        self.assertRefused(
            "job j: it reads topic j-r-repartition, and writes it: it would have no end",
            inputs=[Input("j-r-repartition")],
            repartitions=[Repartition("r")],
        )

    def test_twoUsesOfATopic(self) -> None:
        """An output, a changelog and dead letters are topics of their own."""
        self.assertRefused(
            "job j: topic t is an output and a changelog",
            outputs=[Output("t")],
            stores=[Store("s", changelog="t")],
        )
        self.assertRefused(
            "job j: topic t is an output and has dead letters",
            outputs=[Output("t")],
            deadLetterTopic="t",
        )
        self.assertRefused(
            "job j: topic t is a changelog and has dead letters",
            stores=[Store("s", changelog="t")],
            deadLetterTopic="t",
        )

    def test_repartitions(self) -> None:
        """A repartition's topic has no other use, and its name none for the tasks."""
        topic = "j-r-repartition"
        for changes in (
            {"outputs": [Output(topic)]},
            {"stores": [Store("s", changelog=topic)]},
            {"deadLetterTopic": topic},
        ):
            self.assertRefused(
                f"job j: topic {topic} is written for something else, and is a repartition's",
                repartitions=[Repartition("r")],
                **changes,
            )
        text = "job j: r names a repartition and a topic"
        self.assertRefused(text, inputs=[Input("r")], repartitions=[Repartition("r")])
        self.assertRefused(text, outputs=[Output("r")], repartitions=[Repartition("r")])

    def test_copartitions(self) -> None:
        """They are inputs, and repartitions by their names."""
        given: dict[str, Any] = {
            "outputs": [Output("out")],
            "repartitions": [Repartition("r")],
        }
        job = makeJob(copartitions=iter([("in", "r")]), **given)
        self.assertEqual(job.copartitions, (("in", "r"),))
        given["inputs"] = [Input("in"), Input("all", isBroadcast=True)]
        for name in ("out", "j-r-repartition", "x", "all"):
            self.assertRefused(
                f"job j: {name} is to have as many partitions as others, and is no input that is"
                " divided among the tasks, and no repartition",
                copartitions=[["in", name]],
                **given,
            )


class KindTests(SynchronousTestCase):
    """Whether tasks run on the reactor's thread."""

    def test_isAsync(self) -> None:
        """One coroutine function is enough, of a class or of what a function makes."""
        for task, isAsync in (
            (Idle, False),
            (Waiting, True),
            (ClosedLater, True),
            (lambda: Idle(), False),
            (lambda: ClosedLater(), True),
        ):
            self.assertEqual(makeJob(task=task).isAsync, isAsync)


class RenamedTests(SynchronousTestCase):
    """A new version beside the old one."""

    def test_topics(self) -> None:
        """It reads the same topics; what it writes has its name."""
        job = makeJob(
            outputs=[Output("out")],
            stores=[Store("s"), Store("t", changelog="counts")],
            deadLetterTopic="lost",
            repartitions=[Repartition("r")],
        )
        other = job.renamed("v2")
        self.assertEqual(other.name, "v2")
        self.assertEqual(other.inputs, job.inputs)
        self.assertEqual([other.topicOf(each) for each in other.outputs], ["out.v2"])
        self.assertEqual(
            [other.changelogOf(each) for each in other.stores], ["v2-s-changelog", "counts.v2"]
        )
        self.assertEqual(other.deadLetters, "lost.v2")
        self.assertEqual(
            [other.repartitionTopicOf(each) for each in other.repartitions], ["v2-r-repartition"]
        )
        self.assertEqual(makeJob().renamed("v2").deadLetters, "v2-dead-letters")
        self.assertEqual([job.topicOf(each) for each in job.outputs], ["out"])

    def test_again(self) -> None:
        """The latest name counts."""
        job = makeJob(outputs=[Output("out")]).renamed("v2").renamed("v3")
        self.assertEqual([job.topicOf(each) for each in job.outputs], ["out.v3"])

    def test_checked(self) -> None:
        """The new name is checked as the first one was."""
        with self.assertRaises(ConfigurationError) as caught:
            makeJob().renamed("a b")
        self.assertIn(NAME_RULE, str(caught.exception))


GOOD = """
    from pylogbroker.tasks.api import StreamTask
    from pylogbroker.tasks.job import Input, Job, Output
    from pylogbroker.tasks.serdes import STRING

    PREFIX = "not "


    class Negate(StreamTask):
        def process(self, envelope, collector, coordinator):
            return PREFIX + envelope


    first = Job("first", Negate, [Input("a")])
    again = first
    second = Job("second", Negate, [Input("b")])
"""


class LoadJobsTests(SynchronousTestCase):
    """Job files."""

    def write(self, text: str) -> str:
        """@return: the path of a file with this text."""
        path = Path(self.mktemp())
        path.write_text(dedent(text), encoding="utf-8")
        return str(path)

    def test_jobs(self) -> None:
        """All jobs of a file, by name; their tasks see the file's global names."""
        jobs = loadJobs(self.write(GOOD))
        self.assertEqual(sorted(jobs), ["first", "second"])
        process: Any = jobs["second"].task().process
        self.assertEqual(process("so", None, None), "not so")

    def test_refused(self) -> None:
        """What cannot be loaded is named."""
        for text, reason in (
            ("x = 1", "no global name in it is a Job"),
            ("x = (", "SyntaxError: "),
            ("x = 1\nraise ValueError('no')", ", line 2: ValueError: no"),
            ("raise SystemExit(3)", ", line 1: SystemExit: 3"),
            ("import nothing.like.it", ", line 1: ModuleNotFoundError: "),
            (
                "from pylogbroker.tasks.job import *\nJob('j', None, [])",
                ", line 2: ConfigurationError: job j: it has no input",
            ),
            (
                "from pylogbroker.tasks.job import *\n"
                "a, b = Job('j', None, [Input('a')]), Job('j', None, [Input('b')])",
                "two jobs are named j",
            ),
        ):
            path = self.write(text)
            with self.assertRaises(ConfigurationError) as caught:
                loadJobs(path)
            separator = "" if reason.startswith(",") else ": "
            text = str(caught.exception)
            self.assertTrue(text.startswith(f"{path}{separator}{reason}"), text)

    def test_noFile(self) -> None:
        """A folder, or nothing, is no job file."""
        for path in (self.mktemp(), "."):
            with self.assertRaises(ConfigurationError) as caught:
                loadJobs(path)
            self.assertEqual(str(caught.exception), f"{path}: there is no such file")
