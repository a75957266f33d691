"""
The connections of today's protocol for Twisted: brokers, their versions, the cluster's metadata.
"""
