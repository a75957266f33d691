"""
Failed logins with the owner of the account: the lines of an OpenSSH server's log, joined with the
table of accounts that another topic has. A tombstone there closes an account.

    pylogbroker task run accountattacks.py --bootstrap-server localhost:9092
    pylogbroker produce --bootstrap-server localhost:9092 --topic ssh-log /var/log/auth.log
    pylogbroker consume --bootstrap-server localhost:9092 --topic account-attacks --from-beginning
"""

import re

from pylogbroker.tasks.serdes import JSON, STRING
from pylogbroker.tasks.streams import buildJob, stream, table

FAILED = re.compile(r"Failed password for (?:invalid user )?(\S*) from (\S+) port")


def failedLogin(key, line):
    found = FAILED.search(line)
    return [(found[1], found[2])] if found else []


def withOwner(address, account):
    return {"address": address, "owner": account and account["owner"]}


accounts = table("accounts", key=STRING, message=JSON)

attacks = (
    stream("ssh-log", message=STRING)
    .flatMap(failedLogin, key=STRING, message=STRING, name="failed-logins")
    .leftJoin(accounts, withOwner, message=JSON)
)

accountAttacks = buildJob("account-attacks", attacks.to("account-attacks"))
