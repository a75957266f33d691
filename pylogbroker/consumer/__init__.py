"""
Consumer groups: members share the partitions of topics without a master.
"""
