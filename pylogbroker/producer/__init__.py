"""
The producer of messages (spec-0.7 producer): L{pylogbroker.producer.producer.Producer}.
"""
