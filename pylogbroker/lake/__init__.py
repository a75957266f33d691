"""
Tables in a folder, filled from topics without Spark: what was loaded, how far, and crash-safe
commits.
"""
