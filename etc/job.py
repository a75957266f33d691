"""
A sample job: how often each message of the topic C{words} was there. Its changelog is the topic
C{word-counts}, which other jobs can read::

    twistd -n --pidfile= pylogbroker-task --config etc/task.properties etc/job.py
"""

from __future__ import annotations

from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    StreamTask,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.job import Input, Job, Store
from pylogbroker.tasks.serdes import LONG, STRING


class CountWords(StreamTask):
    """Counts the words of one partition."""

    def init(self, config: Config, context: TaskContext) -> None:
        self.counts = context.getStore("word-counts")

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        word = envelope.getMessage()
        self.counts.put(word, (self.counts.get(word) or 0) + 1)


job = Job(
    "count-words",
    task=CountWords,
    inputs=[Input("words", message=STRING)],
    stores=[Store("word-counts", key=STRING, value=LONG, changelog="word-counts")],
)
