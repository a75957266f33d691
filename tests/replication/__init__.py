"""
Tests of replication: the controller's decisions, and the leader's and the follower's rules.
"""
