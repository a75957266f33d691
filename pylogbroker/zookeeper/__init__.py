"""
ZooKeeper behind a small interface: a client with Deferreds over kazoo, the claiming of ephemeral nodes, a server for development and tests.
"""
