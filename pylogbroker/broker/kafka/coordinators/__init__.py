"""
Coordinators on a broker: what drives the pure ones of L{pylogbroker.coordinator}, and the requests
to them.
"""
