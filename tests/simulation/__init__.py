"""
A whole cluster in one process, on one clock that stands still: brokers, ZooKeeper, a network,
producers, a consumer group; and chance that a seed decides.
"""
