"""
The admin client of today's Kafka: L{pylogbroker.client.kafka.admin.client.AdminClient}.
"""
