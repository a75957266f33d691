"""
The stream manager of a container: it routes the tuples between instances, acknowledges trees, and
stops spouts while a queue is too long.
"""
