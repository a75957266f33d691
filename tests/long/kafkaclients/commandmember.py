"""
A client's program in any language for L{tests.long.kafkaclients.cluster}: starts the command, and
writes down what it says, a line each, in the words of L{tests.integration.kafkachaosmember}.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

from tests.integration.chaosprogram import Record
from tests.integration.numberedmessages import valueName

_COUNTERS = {"ok": "writtenCount", "failed": "failedCount", "unknown": "unknownCount"}


def main() -> None:
    """Run the command that the command line names, in JSON, until C{SIGTERM}."""
    options = json.loads(sys.argv[1])
    record, told = Record(options["record"]), Counter[str]()
    process = subprocess.Popen(options["command"], stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    assert process.stdout is not None
    for line in process.stdout:
        word, *others = line.split()
        if word == "got":
            others[2] = valueName(others[2])
        told[word] += 1
        record.write(word, *others)
    status = process.wait()
    record.write("left")
    record.write("end", json.dumps({name: told[word] for word, name in _COUNTERS.items()}))
    sys.exit(status)


if __name__ == "__main__":
    main()
