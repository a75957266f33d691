"""
The simulation of a whole cluster: three brokers, their controller, ZooKeeper, and our clients, in
one process and on one seed (L{tests.simulation.cluster.world}).
"""
