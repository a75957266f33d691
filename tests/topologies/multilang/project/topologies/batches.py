"""
Numbers in batches, by tick tuples and by a thread.
"""

from bolts.numbers import Batches, Timed
from spouts.numbers import Numbers
from streamparse import Topology


class BatchedNumbers(Topology):
    """Batches of 1000 numbers."""

    config = {"numbers.count": 1000}
    numbers = Numbers.spec()
    batches = Batches.spec(inputs=[numbers], config={"topology.tick.tuple.freq.secs": 0.2})
    timed = Timed.spec(inputs=[numbers])
