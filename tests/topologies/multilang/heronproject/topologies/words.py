"""
A topology that a program builds.
"""

import sys

import heronpy.api.api_constants as constants
from heronpy.api.stream import Grouping
from heronpy.api.topology import TopologyBuilder
from parts import CountBolt, WordSpout

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Topology's name is not specified")
    builder = TopologyBuilder(name=sys.argv[1])
    words = builder.add_spout("words", WordSpout, par=1)
    builder.add_bolt(
        "count",
        CountBolt,
        par=2,
        inputs={words: Grouping.fields("word")},
        config={constants.TOPOLOGY_TICK_TUPLE_FREQ_SECS: 1},
    )
    builder.add_bolt("both", CountBolt, par=3, inputs={words: Grouping.custom("parts.FirstTwo")})
    builder.set_config(
        {
            constants.TOPOLOGY_RELIABILITY_MODE: constants.TopologyReliabilityMode.ATLEAST_ONCE,
            "words.number": 3,
            "words.flag": True,
        }
    )
    builder.build_and_submit()
    sys.exit(0)
