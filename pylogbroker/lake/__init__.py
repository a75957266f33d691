"""
A table in a folder to which topics are loaded: what was loaded, how far, and how that stays true whatever dies. Spark fills it; nothing here knows Spark.
"""
