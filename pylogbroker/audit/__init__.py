"""
Is everything there that was sent? The pure part: what travels, what is counted, how it is compared
(section 4 of the 2011 paper).
"""
