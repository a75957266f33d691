"""
The pure part of the audit: envelopes, counts, and their comparison (section 4 of the 2011 paper).
"""
