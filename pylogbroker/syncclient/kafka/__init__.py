"""
A client of Kafka's current protocol for threads and commands: plain sockets, one request at a time
on each connection, no Twisted.
"""
