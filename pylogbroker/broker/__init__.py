"""
The broker's Twisted skin: connections, what their requests mean, flow control, upkeep. The log itself is L{pylogbroker.storage}'s.
"""
