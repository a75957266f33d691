"""
How fast the broker is, in ratios to a yardstick in C. See C{docs/benchmarks.md}; C{python -m
tests.benchmarks --help} runs it.
"""
