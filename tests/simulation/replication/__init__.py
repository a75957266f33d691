"""
A simulated cluster that replicates a partition: brokers, the metadata log with its sessions, the
controller, producers and consumers, on one seed.
"""
