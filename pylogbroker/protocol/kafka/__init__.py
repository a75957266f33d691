"""
The dialect of today's Kafka: API keys and versions, error codes, messages, and the requests and
responses that are too frequent for the general encoder.
"""
