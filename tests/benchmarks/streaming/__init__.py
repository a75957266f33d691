"""
What jobs cost beside the same ones of Quix Streams and Faust. The programs of those run in a Python
of their own, and so import nothing of this project.
"""
