"""
C{twistd pylogbroker-auditor}: the auditor.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService

from pylogbroker.auditor.auditor import Auditor, TimeOf
from pylogbroker.auditor.service import AuditorService
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.producer.plugins import loadPlugin
from pylogbroker.programs.lifecycle import PropertyOptions, TwistdLifecycle


class Options(PropertyOptions):
    """
    The options of C{twistd pylogbroker-auditor}.

    @ivar timeOf: the function that C{timeof} names.
    """

    synopsis = "[options] --config FILE [--set KEY=VALUE ...]"
    longdesc = (
        "Counts what is in clusters and compares it with what producers say they have sent. "
        "Example: twistd -n --pidfile= pylogbroker-auditor --config etc/auditor.properties"
    )
    read = staticmethod(AuditorSettings.fromProperties)
    timeOf: TimeOf | None = None

    def postOptions(self) -> None:
        """Read the file, and load the function that C{timeof} names."""
        super().postOptions()
        if self.settings.timeOf is not None:
            self.timeOf = loadPlugin("timeof", self.settings.timeOf, {}, "timeOf")


class TwistdAuditorService(TwistdLifecycle, AuditorService):
    """The auditor under C{twistd}."""


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    service: Any = TwistdAuditorService(
        reactor, options.settings, Auditor(reactor, options.settings, timeOf=options.timeOf)
    )
    return options.configure(service)
