"""
A direct grouping, and what a component knows of where it is.
"""

from bolts.numbers import Keeper
from spouts.numbers import Chooser
from streamparse import Grouping, Topology


class Direct(Topology):
    """The spout chooses the task."""

    config = {"topology.acker.executors": 0}
    chooser = Chooser.spec(config={"chooser.mine": [1, {"a": None}]})
    keeper = Keeper.spec(inputs={chooser["direct"]: Grouping.DIRECT}, par=2)
