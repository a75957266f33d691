"""
C{python -m tests.long.kafkaclients.run COMMAND…}: a client's program against a new broker, before
and after a restart of it.

The command gets two more arguments: the broker's address, and C{first} or C{second}. It ends with
status 0 if all was as it should be. The broker has its default settings, but for its port and
C{offsets.topic.num.partitions}; it is stopped in order after C{first}. C{--transactions} asks for
a third run, with C{transactions}; C{--kill} ends the broker as C{kill -9} does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from pylogbroker.testing.backgroundbroker import BackgroundBroker

_SECONDS_MAX = 300


def main() -> int:
    """@return: 0 if every run of the command ended with 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", action="store_true")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--phases", default="first,second")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    phases = options.phases.split(",")
    if options.transactions:
        phases.append("transactions")
    with BackgroundBroker({"brokerid": "1", **settings}) as broker:
        for phase in phases:
            started = time.monotonic()
            command = [*options.command, broker.bootstrapServers, phase]
            try:
                status = subprocess.run(command, check=False, timeout=_SECONDS_MAX).returncode
            except subprocess.TimeoutExpired:
                status = -1
            sys.stdout.write(f"{phase}: {status}, {time.monotonic() - started:.1f} s\n")
            sys.stdout.flush()
            if status:
                return 1
            if options.kill:
                broker.kill()
            else:
                broker.stop()
            broker.start()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
