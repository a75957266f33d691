"""
What clusters of today's Kafka decide by arithmetic.
"""
