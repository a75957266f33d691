"""
The producer: what an application publishes with (spec-0.7 producer). See
L{pylogbroker.producer.producer.Producer}.
"""
