"""
Numbers that fail and come again.
"""

from bolts.numbers import Flaky
from spouts.numbers import Numbers
from streamparse import Topology


class FlakyNumbers(Topology):
    """Each number is doubled, in the end."""

    config = {"numbers.count": 1000}
    numbers = Numbers.spec()
    flaky = Flaky.spec(inputs=[numbers], par=2)
