"""
Settings of topologies.
"""
