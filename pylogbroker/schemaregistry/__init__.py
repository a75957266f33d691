"""
A schema registry: schemas by subject, version and id, stored in a topic, served to the clients of
Confluent's registry.
"""
