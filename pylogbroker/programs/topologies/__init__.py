"""
Programs that run topologies: the processes of a container, the executor that supervises them, and
the local scheduler.
"""
