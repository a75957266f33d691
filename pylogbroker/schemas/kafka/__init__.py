"""
A registry's state in a compacted topic of today's Kafka, as Confluent's registry keeps it: pure.
"""
