"""
The stores of tasks: what keeps their entries, in memory or on disk.
"""
