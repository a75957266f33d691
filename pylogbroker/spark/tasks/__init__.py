"""
Jobs on Spark: a L{Job<pylogbroker.tasks.job.Job>} as a query of Structured Streaming, with Spark's
state store and checkpoint in the place of stores on disk and the positions of a group.
"""
