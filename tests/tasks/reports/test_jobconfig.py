"""Tests of L{pylogbroker.tasks.reports.jobconfig}."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.tasks.job import DEAD_LETTER, MEMORY, Input, Job, Output, Repartition, Store
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics
from pylogbroker.tasks.reports.jobconfig import (
    JobConfig,
    PlannedStep,
    PlannedTopic,
    configOf,
    shownSettings,
)
from pylogbroker.tasks.reports.jsondocument import DOCUMENT_SIZE_MAX
from pylogbroker.tasks.serdes import LONG, STRING
from tests.tasks.jobs import CountWords


class ConfigTests(SynchronousTestCase):
    """The record of a job."""

    job = Job(
        "count",
        CountWords,
        inputs=[Input("words", STRING), Input("names", isBroadcast=True)],
        repartitions=[Repartition("by-word", STRING, LONG)],
        outputs=[Output("copied", message=LONG)],
        stores=[Store("counts", STRING, LONG, engine=MEMORY)],
        config={"api.key": "hush"},
        onError=DEAD_LETTER,
    )

    def test_topics(self) -> None:
        """All topics with their serdes and what is known of them; the values of C{config} not."""
        found = configOf(self.job, {"words": 3, "names": 5})
        self.assertEqual((found.tasks, found.topicCount, found.onError), (3, 6, "dead-letter"))
        self.assertEqual(
            found.topics,
            (
                PlannedTopic("input", "words", "string", "bytes", 3),
                PlannedTopic("broadcast input", "names", "bytes", "bytes", 5),
                PlannedTopic("output", "copied", "bytes", "long"),
                PlannedTopic("repartition", "count-by-word-repartition", "string", "long"),
                PlannedTopic(
                    "changelog", "count-counts-changelog", "string", "long", None, "counts", MEMORY
                ),
                PlannedTopic("dead letters", "count-dead-letters", "bytes", "bytes"),
            ),
        )
        self.assertEqual(JobConfig.decode(found.encode()), found)
        self.assertIn(b"api.key", found.encode())
        self.assertNotIn(b"hush", found.encode())
        self.assertEqual(configOf(self.job, {}).tasks, None)

    def test_large(self) -> None:
        """What would be too large loses steps first, then topics, then the settings."""
        steps = tuple(
            PlannedStep(f"filter-{n}", "filter", "", (f"filter-{n - 1}",)) for n in range(9)
        )
        found = replace(configOf(self.job, {}), steps=steps, stepCount=9)
        self.assertEqual(JobConfig.decode(found.encode()).steps, steps)
        spare = DOCUMENT_SIZE_MAX - len(found.encode())
        large = replace(found, settings={"a": "b" * spare})
        shortened = JobConfig.decode(large.encode())
        self.assertEqual((len(shortened.steps), shortened.stepCount), (4, 9))
        self.assertEqual(len(shortened.topics), 6)
        large = replace(found, settings={"a": "b" * DOCUMENT_SIZE_MAX})
        shortened = JobConfig.decode(large.encode())
        self.assertEqual((shortened.steps, shortened.topics, shortened.settings), ((), (), {}))
        self.assertEqual(shortened.topicCount, 6)

    def test_settings(self) -> None:
        """Those of the container, and known ones of its clients; nothing of the connection."""
        found = shownSettings(
            KafkaTaskSettings.fromProperties(
                {
                    "bootstrap.servers": "secret-host:9092",
                    "sasl.username": "secret-user",
                    "sasl.password": "secret-word",
                    "commit.interval.ms": "50",
                    "consumer.fetch.max.wait.ms": "7",
                    "producer.linger.ms": "9",
                    "producer.ssl.keystore.password": "secret-store",
                },
                lambda _text: None,
            )
        )
        self.assertEqual(found["commit.interval.ms"], "50")
        self.assertEqual(found["consumer.fetch.max.wait.ms"], "7")
        self.assertEqual(found["producer.linger.ms"], "9")
        self.assertEqual(found["state.dir"], "task-state")
        self.assertNotIn("secret", str(found))


class PageTests(SynchronousTestCase):
    """The page of the format."""

    def test_examples(self) -> None:
        """Its records can be read, and have all fields that are written."""
        text = Path(__file__).parents[3].joinpath("docs/task-reports.md").read_text("utf-8")
        config, metrics = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        for kind, example in ((JobConfig, config), (ContainerMetrics, metrics)):
            found = kind.decode(example.encode())
            self.assertEqual(json.loads(found.encode()), json.loads(example))
