"""
Spouts that emit numbers.
"""

from streamparse import ReliableSpout, Spout, Stream


class Numbers(ReliableSpout):
    """Emits C{numbers.count} numbers, again when they fail, and how often that was in the end."""

    outputs = ["number"]

    def initialize(self, stormconf, context):
        """Begins at 0."""
        self.count = stormconf["numbers.count"]
        self.number = 0

    def next_tuple(self):
        """Emits one, while there are any."""
        if self.number < self.count:
            self.emit([self.number], tup_id=f"n{self.number}")
            self.number += 1


class Chooser(Spout):
    """Emits to a task of its choice, and what it knows of where it is."""

    outputs = [Stream(["number"], "direct", direct=True), Stream(["key", "value"], "facts")]

    def initialize(self, stormconf, context):
        """Tells the tasks of the bolt."""
        self.calls = []
        self.number = 0
        tasks = context["task->component"]
        self.tasks = sorted(int(task) for task, name in tasks.items() if name == "keeper")
        facts = {
            "topology": self.topology_name,
            "component": self.component_name,
            "isMine": tasks[str(self.task_id)] == self.component_name,
            "streams": sorted(context["streams"]),
            "grouping": context["stream->target->grouping"]["direct"]["keeper"]["type"],
            "mine": stormconf["chooser.mine"],
        }
        for key, value in facts.items():
            self.emit([key, value], stream="facts")

    def activate(self):
        """Counts it."""
        self.calls.append("activate")

    def deactivate(self):
        """Counts it."""
        self.calls.append("deactivate")

    def next_tuple(self):
        """Emits a number to its task, and tells what came of it."""
        if self.number < 10:
            task = self.tasks[self.number % len(self.tasks)]
            got = self.emit([self.number], stream="direct", direct_task=task, need_task_ids=True)
            told = self.emit(["told", got], stream="facts", need_task_ids=True)
            self.emit(["told", told], stream="facts")
            self.number += 1
        elif self.number == 10:
            self.number += 1
            self.emit(["calls", self.calls], stream="facts")
