"""
The commands, by topic. Each module adds the arguments of its commands to a parser and runs them.
"""
