"""Requests and responses of Kafka 0.7's protocol."""
