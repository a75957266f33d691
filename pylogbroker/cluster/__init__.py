"""
Pure knowledge of a cluster: what its nodes in ZooKeeper mean, assignment, partitioning, topic
filters.
"""
