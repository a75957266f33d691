"""
What a container reads, and in which order.
"""
