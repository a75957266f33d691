"""
A funnel: of the connections to an OpenSSH server that asked for a user who does not exist, which
tried a password within the next minute, and which did not? A connection is known by the number of
its process; a line is joined with those up to a minute behind it. Both sides of the join come by
topics of the job itself: max.task.idle.ms has a task wait for one when the other is ahead.

    pylogbroker task run sshfunnel.py --bootstrap-server localhost:9092 --set max.task.idle.ms=2000
    pylogbroker produce --bootstrap-server localhost:9092 --topic ssh-log /var/log/auth.log
    pylogbroker consume --bootstrap-server localhost:9092 --topic ssh-funnel --from-beginning
"""

import re
from datetime import datetime

from pylogbroker.tasks.serdes import JSON, STRING
from pylogbroker.tasks.streams import JoinWindow, buildJob, stream

YEAR = 2025  # the log has none
UNKNOWN = re.compile(r"sshd\[(\d+)\]: Invalid user (.*) from (\S+)")
FAILED = re.compile(r"sshd\[(\d+)\]: Failed password for invalid user (.*) from (\S+) port")


def timeOf(key, line):
    try:
        time = datetime.strptime(f"{YEAR} {line[:15]} +0000", "%Y %b %d %H:%M:%S %z")
    except ValueError:
        return -1
    return int(time.timestamp() * 1000)


def linesLike(pattern):
    def find(key, line):
        found = pattern.search(line)
        if not found or timeOf(key, line) < 0:
            return []
        return [(found[1], {"user": found[2], "address": found[3]})]

    return find


log = stream("ssh-log", message=STRING, timestamp=timeOf)
asked = log.flatMap(linesLike(UNKNOWN), key=STRING, message=JSON, name="asked")
tried = log.flatMap(linesLike(FAILED), key=STRING, message=JSON, name="tried")

funnel = asked.leftJoin(
    tried,
    lambda question, attempt: {**question, "triedPassword": attempt is not None},
    JoinWindow(beforeMs=0, afterMs=60_000, graceMs=10_000),
    message=JSON,
    name="funnel",
)

sshFunnel = buildJob("ssh-funnel", funnel.to("ssh-funnel"))
