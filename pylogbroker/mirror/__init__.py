"""
The mirror: what one cluster holds, in another. See C{docs/mirror.md}.
"""
