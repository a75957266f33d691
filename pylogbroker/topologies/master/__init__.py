"""
The topology master: takes the hellos of stream managers, pushes the physical plan, answers for
status and metrics.
"""
