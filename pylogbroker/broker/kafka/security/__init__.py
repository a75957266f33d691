"""
Who clients are, and what they may do: authentication, authorization.
"""
