"""What tests of the high-level API do with a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pylogbroker.tasks.job import Job
from pylogbroker.testing.tasktestdriver import TaskTestDriver

Sent = tuple[Any, Any, int | None]


def sentTo(driver: TaskTestDriver, topic: str) -> list[Sent]:
    """Key, message and timestamp of what was sent since the last call."""
    return [(each.key, each.message, each.timestamp) for each in driver.readRecords(topic)]


def outputOf(job: Job, *messages: tuple[str, Any, Any, int], topic: str = "out") -> list[Sent]:
    """
    What a job of one task sends to a topic.

    @param messages: topic, key, message and timestamp of each.
    """
    with TaskTestDriver(job) as driver:
        pipe(driver, messages)
        return sentTo(driver, topic)


def pipe(driver: TaskTestDriver, messages: Iterable[tuple[str, Any, Any, int]]) -> None:
    """Hand messages to a job: topic, key, message and timestamp of each."""
    for topic, key, message, timestamp in messages:
        driver.pipeInput(topic, key, message, timestamp)
