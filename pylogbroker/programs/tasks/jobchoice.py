"""
What a command line says of containers: which jobs of a file, under which name, with which settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.config.properties import Properties, readProperties
from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.job import Job, loadJobs


def chosenJobs(path: str, name: str | None = None, newName: str | None = None) -> list[Job]:
    """
    Jobs of a file. Blocks.

    @param name: the only one; L{None}: all.
    @param newName: it runs under this name, beside the one of the file; see C{Job.renamed}.
    @raise ConfigurationError: the file cannot be used; it has no such job; it has several, and
        C{newName} is for one.
    """
    found = loadJobs(path)
    if name is not None:
        if name not in found:
            raise ConfigurationError(f"{path} has no job {name}; it has: {', '.join(found)}")
        found = {name: found[name]}
    jobs = list(found.values())
    if newName is not None:
        if len(jobs) > 1:
            raise ConfigurationError(
                f"{path} has the jobs {', '.join(found)}: --as needs --job, which says which one"
            )
        jobs = [jobs[0].renamed(newName)]
    return jobs


def containerSettings(
    path: str | None, changes: Sequence[str], warn: Callable[[str], None]
) -> KafkaTaskSettings:
    """
    Settings of a container. Blocks.

    @param path: a property file; L{None}: none.
    @param changes: C{KEY=VALUE} each, which override the file.
    @raise ConfigurationError: the file cannot be read; a setting is wrong or missing.
    """
    properties = Properties() if path is None else readProperties(path, warn)
    return KafkaTaskSettings.fromProperties(properties.withOverrides(changes), warn)
