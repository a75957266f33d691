"""
The logs behind a broker's metadata, its own journal or the cluster's in ZooKeeper, and what keeps
the latter: the registration of brokers, and the controller.
"""
