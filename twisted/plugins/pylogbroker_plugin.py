"""
What C{twistd} offers once pylogbroker is installed. No service is imported before it is requested.
"""

from twisted.application.service import ServiceMaker

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
