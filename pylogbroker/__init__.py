"""
pylogbroker: a distributed, append-only publish-subscribe log on Twisted.

Importing this package imports nothing else; each room is imported by its own name
(``pylogbroker.client``, ``pylogbroker.syncclient``, ``pylogbroker.testing`` …).
"""

__version__ = "0.1.0"
