"""
The auditor: reads clusters and counts, and says whether everything is there that was sent (section
4 of the 2011 paper).
"""
