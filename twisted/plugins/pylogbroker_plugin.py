"""
What C{twistd} offers once pylogbroker is installed. No service is imported before it is requested.
"""

import gc
from typing import Any

from twisted.application import service


class ServiceMaker(service.ServiceMaker):
    """
    Imports its module without looking for garbage, which Python does each time some hundred objects
    are made; later collections pass over what is there then. What an import makes stays. (An eighth
    of the time up to a broker's first answer.)
    """

    @property
    def options(self) -> Any:
        """The class of the program's options."""
        wasEnabled = gc.isenabled()
        gc.disable()
        try:
            return super().options
        finally:
            gc.freeze()
            if wasEnabled:
                gc.enable()


pylogbroker = ServiceMaker(
    "pylogbroker",
    "pylogbroker.programs.brokertap",
    "A broker of a publish-subscribe log, which speaks the protocol of Kafka 0.7.",
    "pylogbroker",
)
auditor = ServiceMaker(
    "pylogbroker-auditor",
    "pylogbroker.programs.auditortap",
    "Counts what is in clusters and compares it with what was sent.",
    "pylogbroker-auditor",
)
pylogbrokerConsole = ServiceMaker(
    "pylogbroker-console",
    "pylogbroker.programs.consoletap",
    "A page that shows a pylogbroker cluster.",
    "pylogbroker-console",
)
pylogbrokerMirror = ServiceMaker(
    "pylogbroker-mirror",
    "pylogbroker.programs.mirrortap",
    "Copies topics of pylogbroker clusters into another.",
    "pylogbroker-mirror",
)
pylogbrokerRegistry = ServiceMaker(
    "pylogbroker-registry",
    "pylogbroker.programs.registrytap",
    "Keeps schemas in a topic, for registry clients.",
    "pylogbroker-registry",
)
pylogbrokerTask = ServiceMaker(
    "pylogbroker-task",
    "pylogbroker.programs.tasks.tasktap",
    "Runs the tasks of a job.",
    "pylogbroker-task",
)
