"""
A schema registry on a compacted topic of today's Kafka, in Confluent's format.
"""
