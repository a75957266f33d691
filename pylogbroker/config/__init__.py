"""
Configuration: Java property files with Kafka's own key names, and the tables that say what each key
means.
"""
