"""
What brokers, producers and consumers tell each other through ZooKeeper, and the arithmetic on which they agree without a master. Pure.
"""
