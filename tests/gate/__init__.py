"""
The gate: what has to hold before a change is good, run and counted by C{tests/run}.
"""
