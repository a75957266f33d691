"""
Coordinators of today's groups and transactions, their clients, the log and the network between
them, in random orders of events that a seed decides.
"""
