"""
Programs that run with the Python of the author's environment. They import nothing of ours, and
need no more than Python 3.7.
"""
