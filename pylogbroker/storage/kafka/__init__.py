"""
What Kafka 4.x keeps beside the segments of a partition, in its file formats, and the log that uses
it: L{pylogbroker.storage.kafka.batchlog}.
"""
