"""
Publish the lines of a file from one thread while another one reads them, over plain sockets;
nothing of Twisted is imported.
"""

import argparse
import threading
import time

from pylogbroker.records.compression import GZIP
from pylogbroker.syncclient import SimpleConsumer, SyncProducer
from pylogbroker.types import LATEST


def read(options, offset, count):
    with SimpleConsumer(options.host, options.port) as consumer:
        while count:
            messages = consumer.fetch(options.topic, 0, offset, 1 << 20)
            for message, offset in messages:
                print(message.payload.decode(errors="replace"))
                count -= 1
            time.sleep(0.2)  # what is flushed is visible, and nothing else


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", type=argparse.FileType("rb"))
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=9092)
parser.add_argument("--topic", default="lines")
options = parser.parse_args()

lines = options.file.read().splitlines()
with SimpleConsumer(options.host, options.port) as consumer:
    [offset] = consumer.getOffsetsBefore(options.topic, 0, LATEST, 1)
reader = threading.Thread(target=read, args=(options, offset, len(lines)))
reader.start()
with SyncProducer(options.host, options.port) as producer:
    for begin in range(0, len(lines), 200):
        producer.send(options.topic, 0, lines[begin : begin + 200], codec=GZIP)
reader.join()
