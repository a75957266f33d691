"""
The coordinator of transactions as a pure state machine, and the records it writes to its topic.
"""
