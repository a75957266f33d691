"""
Failed logins by address, from the lines of an OpenSSH server's log, from topic to topic: a log
spout reads lines, a bolt parses them, another one counts, and a log bolt writes each new count. The
last message of an address has its count.

    pylogbroker topology submit sshfailures.py --set bootstrap.servers=localhost:9092
    pylogbroker produce --bootstrap-server localhost:9092 --topic ssh-log /var/log/auth.log
    pylogbroker consume --bootstrap-server localhost:9092 --topic ssh-failures --from-beginning

At least once: after the death of a process lines may be counted twice, and none is missed, but the
counts of a process that dies are gone with it.
"""

import re

from pylogbroker.topologies import Bolt, Grouping, TopologyBuilder
from pylogbroker.topologies.log import LogBolt, LogSpout

FAILED = re.compile(r"Failed password for (?:invalid user )?(\S*) from (\S+) port")


class SshLines(LogSpout):
    outputs = ["line"]

    def translate(self, record):
        return [record.value.decode("utf-8", "replace")]


class FailedLogins(Bolt):
    outputs = ["address", "user"]
    isAutoAnchored = isAutoAcked = True

    def process(self, tup):
        if found := FAILED.search(tup["line"]):
            self.emit([found[2], found[1]])


class CountFailures(Bolt):
    outputs = ["key", "value"]
    isAutoAnchored = isAutoAcked = True

    def initialize(self, config, context):
        self.found = {}

    def process(self, tup):
        failures = self.found.setdefault(tup["address"], {"attempts": 0, "users": []})
        failures["attempts"] += 1
        if tup["user"] not in failures["users"]:
            failures["users"].append(tup["user"])
        self.emit([tup["address"], failures])


builder = TopologyBuilder("ssh-failures", {"topology.reliability.mode": "ATLEAST_ONCE"})
builder.setSpout("lines", lambda: SshLines("ssh-log"), 2)
builder.setBolt("failed-logins", FailedLogins, 2, {"lines": Grouping.SHUFFLE})
builder.setBolt("count", CountFailures, 3, {"failed-logins": Grouping.fields("address")})
builder.setBolt("write", lambda: LogBolt("ssh-failures"), 1, {"count": Grouping.fields("key")})
sshFailures = builder.build()
