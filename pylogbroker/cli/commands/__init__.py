"""
The commands, by topic. Each module has the arguments of its commands and runs them; it is imported
when one of them is typed. L{pylogbroker.cli.main} lists them all.
"""
