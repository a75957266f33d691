"""
Counters, snapshots, and the metrics made of them.
"""
