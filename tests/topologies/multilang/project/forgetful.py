"""
A bolt without a library: it acknowledges nothing before the fortieth tuple, and then the first one,
anchors to that, and says it all in one write.
"""

import json
import os
import sys


def main():
    """Speak the protocol."""
    text, ids = "", []
    for line in sys.stdin:
        if line != "end\n":
            text += line
            continue
        message, text = json.loads(text), ""
        if "pidDir" in message:
            say({"pid": os.getpid()})
        elif message["stream"] == "__heartbeat":
            say({"command": "sync"})
        else:
            ids.append(message["id"])
            if len(ids) == 40:
                say(
                    {"command": "ack", "id": ids[0]},
                    {"command": "emit", "tuple": ["late"], "anchors": ids[0]},
                    {"command": "emit", "tuple": ["soon"], "anchors": [ids[-1]]},
                    {"command": "ack", "id": ids[-1]},
                    {"command": "log", "msg": "all said"},
                    {"command": "metrics", "name": "whole", "params": 2.0},
                )
                for _ in range(2):  # both emits wait for their tasks
                    targets = json.loads(sys.stdin.readline())
                    assert sys.stdin.readline() == "end\n"
                say({"command": "fail", "id": ids[-2]}, {"command": "log", "msg": targets})
            elif len(ids) == 41:
                say({"command": "ack", "id": "none"})


def say(*messages):
    """Write messages."""
    sys.stdout.write("".join(json.dumps(each) + "\nend\n" for each in messages))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
