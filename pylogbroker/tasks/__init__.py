"""
Stateful stream processing on the log: jobs of tasks, one for each partition, with their state
beside them.
"""
