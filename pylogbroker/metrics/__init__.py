"""
Counting: plain numbers that a broker adds to while it works, and a picture of them for whoever
asks.
"""
