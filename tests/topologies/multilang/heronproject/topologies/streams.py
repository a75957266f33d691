"""
A streamlet with a window.
"""

import sys

from heronpy.connectors.mock.arraylooper import ArrayLooper
from heronpy.streamlet.builder import Builder
from heronpy.streamlet.config import Config
from heronpy.streamlet.runner import Runner
from heronpy.streamlet.windowconfig import WindowConfig

if __name__ == "__main__":
    builder = Builder()
    source = builder.new_source(ArrayLooper(["a b a", "c"], sleep=0.01))
    (
        source.flat_map(lambda line: line.split())
        .map(lambda word: (word, 1))
        .set_num_partitions(2)
        .reduce_by_key_and_window(WindowConfig.create_sliding_window(2, 1), lambda x, y: x + y)
        .map(lambda pair: [pair[0]._key, pair[1]])
        .set_name("told")
        .log()
    )
    Runner().run(sys.argv[1], Config(), builder)
