"""
Consumer groups: streams of messages whose partitions are shared among the members of a group,
without a master.
"""
