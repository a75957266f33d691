"""
The topology of Figure 1 of "Streaming@Twitter" (2015): one spout, two streams, four bolts. What
flows through it is the paper's own case, counts of active users and of hashtags, in real time::

                        tweets                    hashtags
                     ┌──────────> parse-tweets ──────────────> count-hashtags
        events ──────┤                  │ activity
                     │                  └─────────┐
                     └──────────> check-likes ────┴──────────> active-users
                        likes               activity

    pylogbroker topology submit activeusers.py
    pylogbroker topology submit activeusers.py --containers 3 \
        --set activeusers.events=events.jsonl --set activeusers.output=results

A file of events has a line of JSON for each: {"minute": 7, "user": "ada", "text": "#snow"}, or with
"likes": "bob" in place of "text". Without one, events are made up without end. Each instance of the
last two bolts writes its results into a file of the folder; those of all instances are disjoint.
"""

import json
import os
from pathlib import Path

from pylogbroker.topologies import Bolt, Grouping, Spout, StreamId, TopologyBuilder

USERS = ["ada", "bob", "cleo", "dan", "eve", "robot-1", "robot-2"]
TEXTS = ["#snow again", "good morning", "#Tea and #scones", "late for the #bus", "#snow #snow"]


class Events(Spout):
    """Each instance has its share of the lines of the file, and emits those that fail again."""

    outputs = {"tweets": ["minute", "user", "text"], "likes": ["minute", "user", "author"]}

    def initialize(self, config, context):
        self.context = context
        self.lines = None
        if path := config.get("activeusers.events"):
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            self.lines = lines[context.taskIndex :: context.parallelism]
        self.next = 0
        self.pending = {}
        self.failed = []

    def nextTuple(self):
        if self.failed:
            self.emitEvent(self.failed.pop())
            return
        event = self.madeUp() if self.lines is None else self.read()
        if event is not None:
            self.next += 1
            self.pending[self.next] = event
            self.emitEvent(self.next)

    def emitEvent(self, number):
        event = self.pending[number]
        stream, what = ("tweets", "text") if "text" in event else ("likes", "likes")
        self.emit([event["minute"], event["user"], event[what]], tupleId=number, stream=stream)

    def read(self):
        return json.loads(self.lines[self.next]) if self.next < len(self.lines) else None

    def madeUp(self):
        def chosen(values):
            return values[int(self.context.random() * len(values))]

        event = {"minute": int(self.context.seconds() // 60), "user": chosen(USERS)}
        isTweet = self.context.random() < 0.5
        return event | ({"text": chosen(TEXTS)} if isTweet else {"likes": chosen(USERS)})

    def ack(self, tupleId):
        del self.pending[tupleId]

    def fail(self, tupleId):
        self.failed.append(tupleId)


class ParseTweets(Bolt):
    outputs = {"hashtags": ["hashtag"], "activity": ["minute", "user"]}

    def process(self, tup):
        for word in tup["text"].split():
            if word.startswith("#"):
                self.emit([word.lower()], stream="hashtags", anchors=[tup])
        self.emit([tup["minute"], tup["user"]], stream="activity", anchors=[tup])
        self.ack(tup)


class CheckLikes(Bolt):
    """Programs that like tweets are no active users, and those who like their own neither."""

    outputs = {"activity": ["minute", "user"]}

    def process(self, tup):
        if not tup["user"].startswith("robot-") and tup["user"] != tup["author"]:
            self.emit([tup["minute"], tup["user"]], stream="activity", anchors=[tup])
        self.ack(tup)


class Results(Bolt):
    """Writes a file of results with each tick tuple."""

    config = {"topology.tick.tuple.freq.secs": 1}
    isAutoAcked = True

    def initialize(self, config, context):
        folder = config.get("activeusers.output")
        self.path = folder and Path(folder, f"{context.component}-{context.taskIndex}.json")
        self.found = {}

    def process(self, tup):
        if not tup.isTick:
            self.add(tup)
        elif self.path:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.results()), encoding="utf-8")
            os.replace(new, self.path)
        else:
            print(self.results(), flush=True)

    def results(self):
        return self.found


class CountHashtags(Results):
    def add(self, tup):
        self.found[tup["hashtag"]] = self.found.get(tup["hashtag"], 0) + 1


class ActiveUsers(Results):
    """How many users were active in each minute, of those that this instance sees."""

    def add(self, tup):
        self.found.setdefault(tup["minute"], set()).add(tup["user"])

    def results(self):
        return {minute: len(users) for minute, users in self.found.items()}


builder = TopologyBuilder("active-users", {"topology.reliability.mode": "ATLEAST_ONCE"})
builder.setSpout("events", Events, 2)
builder.setBolt("parse-tweets", ParseTweets, 2, {StreamId("events", "tweets"): Grouping.SHUFFLE})
builder.setBolt("check-likes", CheckLikes, 2, {StreamId("events", "likes"): Grouping.SHUFFLE})
builder.setBolt(
    "count-hashtags",
    CountHashtags,
    2,
    {StreamId("parse-tweets", "hashtags"): Grouping.fields("hashtag")},
)
builder.setBolt(
    "active-users",
    ActiveUsers,
    3,
    {
        StreamId("parse-tweets", "activity"): Grouping.fields("user"),
        StreamId("check-likes", "activity"): Grouping.fields("user"),
    },
)
activeUsers = builder.build()
