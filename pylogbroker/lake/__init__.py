"""
Tables in a folder, filled from topics: what was loaded, how far, and commits that survive every
crash. Without Spark.
"""
