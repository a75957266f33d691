"""
The seeded simulation of topologies.
"""
