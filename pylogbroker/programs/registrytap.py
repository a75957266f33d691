"""
C{twistd pylogbroker-registry}: the schema registry.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService

from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import InvalidRegistryTopicError
from pylogbroker.programs.lifecycle import PropertyOptions, TwistdLifecycle

try:
    from pylogbroker.schemaregistry.service import RegistryService
except ModuleNotFoundError as error:
    # One line and status 1, as any failed start: twistd would print an ImportError's traceback.
    raise SystemExit(
        "pylogbroker: the registry needs the extra avro: pip install '.[avro]' in the checkout"
        f" ({error})"
    ) from error


class Options(PropertyOptions):
    """The options of C{twistd pylogbroker-registry}."""

    synopsis = "[options] --config FILE [--set KEY=VALUE ...]"
    longdesc = (
        "Keeps schemas in a topic, and serves them to registry clients. Example: "
        "twistd -n --pidfile= pylogbroker-registry --config etc/registry.properties"
    )
    read = staticmethod(RegistrySettings.fromProperties)


class TwistdRegistryService(TwistdLifecycle, RegistryService):
    """The registry under C{twistd}."""

    def unusable(self, error: InvalidRegistryTopicError) -> None:
        """End the process with an error."""
        super().unusable(error)
        self.endInFailure(error)


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    service: Any = TwistdRegistryService(reactor, options.settings)
    return options.configure(service)
