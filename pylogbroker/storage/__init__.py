"""
The log on disk: partitions, each a list of segment files, under one log directory.

A floor-1 room: blocking files, no Twisted, no threads of its own. The I{owner} of a
L{pylogbroker.storage.partitionlog.PartitionLog} calls its methods from one thread. Blocking work is
a I{job} (L{pylogbroker.storage.jobs.DiskJob}): C{begin…} makes it on the owner's thread, C{run} may
run on any thread, C{finish…} takes the result in on the owner's thread.
"""
