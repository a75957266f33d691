"""
The log on disk: partitions, each a list of segment files, under one log directory.

A floor-1 room: plain blocking files, no Twisted, no threads of its own. Whoever owns a
L{pylogbroker.storage.partitionlog.PartitionLog} calls its methods from one thread, the I{owner}'s.
What blocks is handed out as a I{job} (L{pylogbroker.storage.jobs.Job}): C{begin…} on the owner's
thread makes it, C{run} may be called on any thread, C{finish…} on the owner's thread takes in the
result.
"""
