"""
The settings of clients of today's Kafka, with the keys, meanings and defaults of Java's clients.
"""
