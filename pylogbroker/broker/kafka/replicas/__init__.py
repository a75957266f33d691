"""
Partitions that are on several brokers: this broker leads some, and follows the leaders of others.
"""
