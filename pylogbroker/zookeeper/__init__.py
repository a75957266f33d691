"""
ZooKeeper: a client with Deferreds over kazoo, ephemeral nodes, a server for development and tests.
"""
