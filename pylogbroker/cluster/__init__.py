"""
Pure knowledge of a cluster: its nodes in ZooKeeper, assignment, partitioning, topic filters.
"""
