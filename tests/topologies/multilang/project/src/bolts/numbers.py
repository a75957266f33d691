"""
Bolts that get numbers.
"""

import os
import time

from streamparse import BatchingBolt, Bolt, Stream, TicklessBatchingBolt


class Flaky(Bolt):
    """Doubles numbers; fails each seventh one the first time."""

    outputs = ["twice"]
    auto_ack = False

    def initialize(self, stormconf, context):
        """Has seen none."""
        self.seen = set()

    def process(self, tup):
        """Doubles or fails it."""
        number = tup.values.number
        if number % 7 == 0 and number not in self.seen:
            self.seen.add(number)
            self.fail(tup)
            return
        self.emit([number * 2])
        self.ack(tup)


class Keeper(Bolt):
    """Emits what it gets, its task and a metric."""

    outputs = ["number", "task"]

    def process(self, tup):
        """Emits it."""
        self.report_metric("kept", 1)
        self.report_metric("share", 0.5)
        self.logger.warning("kept %s", tup.values.number)
        self.emit([tup.values.number, self.task_id])


class Batches(BatchingBolt):
    """Emits the sums of even and odd numbers between ticks."""

    outputs = ["isOdd", "sum"]
    ticks_between_batches = 0

    def group_key(self, tup):
        """Whether it is odd."""
        return tup.values.number % 2

    def process_batch(self, key, tups):
        """Emits the sum."""
        self.emit([key, sum(tup.values.number for tup in tups)])


class Timed(TicklessBatchingBolt):
    """Emits batches from a thread of its own."""

    outputs = ["count"]
    secs_between_batches = 0.1

    def process_batch(self, key, tups):
        """Emits how many there are."""
        self.emit([len(tups)])


class Broken(Bolt):
    """Breaks in the way that its configuration says."""

    outputs = [Stream(["any"])]

    def initialize(self, stormconf, context):
        """Reads the way."""
        self.way = stormconf["broken.way"]

    def process(self, tup):
        """Breaks."""
        if self.way == "raise":
            raise RuntimeError("it is broken")
        if self.way == "exit":
            os._exit(7)
        if self.way == "hang":
            time.sleep(600)
        if self.way == "print":
            os.write(1, b"some text\nend\n")
            time.sleep(600)
        if self.way == "ack":
            self.ack(tup)  # and again behind process
        if self.way == "foreign":
            self.ack("4000000000")
        if self.way == "anchor":
            self.ack(tup)
            self.emit([1], anchors=[tup])
        if self.way == "command":
            self.send_message({"command": "dance"})
        if self.way == "stream":
            self.emit([1], stream="nowhere")
        if self.way == "fields":
            self.emit([1, 2])
        if self.way == "nothing":
            self.send_message({"command": "emit"})
