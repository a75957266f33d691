"""
Processes that a program starts and keeps running: of containers of tasks, and of topologies.
"""
