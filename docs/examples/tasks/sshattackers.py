"""
Sessions of those who guess passwords: failed logins of an address that follow one another within
ten minutes, from the lines of an OpenSSH server's log. Each session is sent when it is over.

    pylogbroker task run sshattackers.py --bootstrap-server localhost:9092
    pylogbroker produce --bootstrap-server localhost:9092 --topic ssh-log /var/log/auth.log
    pylogbroker consume --bootstrap-server localhost:9092 --topic ssh-attackers --from-beginning
"""

import re
from datetime import datetime

from pylogbroker.tasks.serdes import JSON, STRING
from pylogbroker.tasks.streams import ON_CLOSE, SessionWindow, buildJob, stream

YEAR = 2025  # the log has none
FAILED = re.compile(r"Failed password for (?:invalid user )?(\S*) from (\S+) port")


def timeOf(key, line):
    try:
        time = datetime.strptime(f"{YEAR} {line[:15]} +0000", "%Y %b %d %H:%M:%S %z")
    except ValueError:
        return -1
    return int(time.timestamp() * 1000)


def failedLogin(key, line):
    found = FAILED.search(line)
    return [(found[2], found[1])] if found and timeOf(key, line) >= 0 else []


def add(address, user, session):
    return {"attempts": session["attempts"] + 1, "users": sorted({*session["users"], user})}


def merge(address, earlier, later):
    users = {*earlier["users"], *later["users"]}
    return {"attempts": earlier["attempts"] + later["attempts"], "users": sorted(users)}


def described(window, session):
    times = {"startMs": window.startMs, "endMs": window.endMs}
    return window.key, {**times, **session}


sessions = (
    stream("ssh-log", message=STRING, timestamp=timeOf)
    .flatMap(failedLogin, key=STRING, message=STRING, name="failed-logins")
    .groupByKey()
    .window(SessionWindow(gapMs=600_000, graceMs=60_000), emit=ON_CLOSE)
    .aggregate(lambda: {"attempts": 0, "users": []}, add, merge, message=JSON, name="sessions")
)

attackers = sessions.toStream().map(described, key=STRING, message=JSON).to("ssh-attackers")

sshAttackers = buildJob("ssh-attackers", attackers)
