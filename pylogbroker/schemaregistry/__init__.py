"""
A schema registry: schemas by subject, version and id, kept in a topic of ours, served to the clients that there are.
"""
