"""
Metrics of a topology's processes: each reports to its container's metrics manager, which has sinks
and passes all on to the master.
"""
