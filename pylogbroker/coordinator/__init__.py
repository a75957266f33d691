"""
Coordinators of consumer groups as pure state machines, and the records they write to their topics.
"""
