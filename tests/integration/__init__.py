"""
Tests of the whole broker over real sockets: C{twistd pylogbroker} as a process, or the whole
service inside the test.
"""
