"""
A topology that is a class, whose components are in its own file.
"""

from heronpy.api.bolt.bolt import Bolt
from heronpy.api.custom_grouping import ICustomGrouping
from heronpy.api.spout.spout import Spout
from heronpy.api.stream import Grouping
from heronpy.api.topology import Topology


class Point:
    """A value that only this file knows."""

    def __init__(self, x):
        self.x = x


class Points(Spout):
    """Emits points."""

    outputs = ["point"]

    def initialize(self, config, context):
        """Begins at 0."""
        self.x = 0

    def next_tuple(self):
        """Emits ten."""
        if self.x < 10:
            self.emit([Point(self.x)])
            self.x += 1


class Chooser(ICustomGrouping):
    """Sends by the point's number."""

    def prepare(self, context, component, stream, target_tasks):
        """Remembers the tasks."""
        self.tasks = target_tasks

    def choose_tasks(self, values):
        """One of them."""
        return [self.tasks[values[0].x % len(self.tasks)]]


class Numbers(Bolt):
    """Emits the numbers of points."""

    outputs = ["x", "stream"]

    def initialize(self, config, context):
        """Nothing more."""

    def process(self, tup):
        """Emits one."""
        if not isinstance(tup.values[0], Point):
            raise TypeError(tup)
        self.emit([tup.values[0].x, tup.stream])


class Alone(Topology):
    """Points and their numbers."""

    points = Points.spec()
    numbers = Numbers.spec(par=2, inputs={points: Grouping.custom(Chooser())})
