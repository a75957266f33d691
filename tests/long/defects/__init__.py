"""
The defects of an earlier commit, and the tests of their mends with that commit's names:
C{python -m tests.long.defects} runs these against it, where each must fail.
"""
