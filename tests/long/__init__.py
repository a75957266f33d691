"""
The long forms of tests that the gate runs in a short form: one command each, by hand, whose output
is kept under C{docs/results}.
"""
