"""
Groups of the consumer protocol (KIP-848), whose partitions the coordinator assigns.
"""
