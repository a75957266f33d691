"""Further clients of today's Kafka, against this broker; see C{run.py}."""
