"""
C{twistd pylogbroker-task}: a container of a job's tasks. It waits for topics that are not there
yet, and ends with status 1 when it fails.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.failure import Failure

from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.console.service import MetricsService
from pylogbroker.errors import ConfigurationError, PylogbrokerError, TaskFailedError, describeError
from pylogbroker.metrics.taskmetrics import containerFamilies
from pylogbroker.programs.lifecycle import HttpServiceMixin, ProgramOptions, TwistdLifecycle, warn
from pylogbroker.programs.tasks.jobchoice import chosenJobs, containerSettings
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import Job

log = Logger()


class Options(ProgramOptions):
    """
    The options of C{twistd pylogbroker-task}.

    @ivar job: a L{Job}.
    @ivar settings: a L{KafkaTaskSettings}.
    """

    synopsis = "[options] [--config FILE] [--set KEY=VALUE ...] JOB_FILE"
    longdesc = (
        "Runs a container of the tasks of a job. Containers share the tasks, on as many machines "
        "as there are. Example: twistd -n --pidfile= pylogbroker-task --config etc/task.properties "
        "etc/job.py"
    )
    optParameters = [
        ["config", "c", None, "The property file."],
        ["job", "j", None, "The job, if the file has several."],
        ["as", None, None, "Run the job under this name, with its own group, stores and outputs."],
        [
            "container-id",
            None,
            "",
            "With exactly_once_v2: what names the container, so that it can take its own place.",
        ],
        [
            "listen",
            "l",
            "",
            "Where to serve /metrics: a port of 127.0.0.1, or a Twisted endpoint string.",
        ],
    ]
    job: Job
    settings: KafkaTaskSettings

    def opt_host(self, name: str) -> None:
        """A host name of /metrics beside localhost and any IP address. Can be repeated."""
        self.setdefault("host", []).append(name)

    def opt_set(self, change: str) -> None:
        """A property that overrides the file's, as KEY=VALUE. Can be repeated."""
        self.setdefault("set", []).append(change)

    opt_s = opt_set

    def parseArgs(self, *files: str) -> None:
        """The file of the job."""
        if len(files) != 1:
            raise usage.UsageError("one file with a job is needed")
        self["file"] = files[0]

    def postOptions(self) -> None:
        """Read the files."""
        super().postOptions()
        self.settings = containerSettings(self["config"], self.get("set", ()), warn)
        jobs = chosenJobs(self["file"], self["job"], self["as"])
        if len(jobs) > 1:
            names = ", ".join(each.name for each in jobs)
            raise usage.UsageError(f"{self['file']} has the jobs {names}: --job says which one")
        [self.job] = jobs


class ContainerService(Service):
    """
    A container as a service.

    @ivar container: a L{TaskContainer}.
    """

    name = "pylogbroker-task"

    def __init__(
        self, reactor: Any, job: Job, settings: KafkaTaskSettings, containerId: str
    ) -> None:
        self._reactor = reactor
        self._arguments = (job, settings, containerId)
        self.container: TaskContainer | None = None

    def privilegedStartService(self) -> None:
        """@raise ConfigurationError: a store's engine is not installed."""
        job, settings, containerId = self._arguments
        self.container = TaskContainer(self._reactor, job, settings, containerId=containerId)
        super().privilegedStartService()

    def startService(self) -> None:
        """Begin."""
        assert self.container is not None
        super().startService()
        self.container.run().addCallbacks(lambda _: self.ended(), self._failed)

    def _failed(self, failure: Failure) -> None:
        error: Any = failure.value
        cause = error.__cause__
        if isinstance(error, TaskFailedError) and cause is not None:
            log.failure("The job's own code has raised", Failure(cause, None, cause.__traceback__))
        if not isinstance(error, PylogbrokerError):
            log.failure("The job's own code has raised", failure)
            error = ConfigurationError(f"{type(error).__name__}: {describeError(error)}")
        self.failed(error)

    def ended(self) -> None:
        """The container has ended in order: at its end, or since one of its tasks asked for it."""

    def failed(self, error: PylogbrokerError) -> None:
        """The container has failed, and is closed."""

    def stopService(self) -> Deferred[None]:
        """@return: fires when all is committed and closed."""
        super().stopService()
        assert self.container is not None
        return self.container.stop()


class TwistdContainerService(TwistdLifecycle, HttpServiceMixin, ContainerService):
    """A container under C{twistd}, with its metrics over HTTP."""

    def ended(self) -> None:
        """End the process."""
        self._stopReactor()

    def failed(self, error: PylogbrokerError) -> None:
        """End the process with an error."""
        self.endInFailure(error)


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    job = options.job
    service: Any = TwistdContainerService(reactor, job, options.settings, options["container-id"])
    listener = options["listen"].strip()
    if listener:
        service.site = MetricsService(
            reactor,
            listener,
            lambda: containerFamilies(job.name, service.container),
            tuple(options.get("host", ())),
        )
    return options.configure(service)
