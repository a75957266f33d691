"""
What containers of tasks publish of themselves: the configuration of their jobs, and metrics, each
in a topic.
"""
