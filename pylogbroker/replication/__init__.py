"""
Replication as pure decisions: the controller's over the metadata image, and the state machines of a
partition's leader and of its followers. No sockets, files, clock or randomness; the broker carries
the decisions out. C{docs/replication.md} states what must be true.
"""
