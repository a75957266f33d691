"""What C{twistd} offers once pylogbroker is installed. Nothing is imported before a service is asked for."""

from twisted.application.service import ServiceMaker

pylogbroker = ServiceMaker("pylogbroker", "pylogbroker.tap", "A broker of a publish-subscribe log, which speaks the protocol of Kafka 0.7.", "pylogbroker")
pylogbrokerMirror = ServiceMaker("pylogbroker-mirror", "pylogbroker.mirrortap", "Copies topics of pylogbroker clusters into another.", "pylogbroker-mirror")
