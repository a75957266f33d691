"""
Kafka's current protocol, over the same partitions, log manager and connections as the dialect of
2011 (L{pylogbroker.broker.kafka07}), which a reader of this folder need not know.
"""
