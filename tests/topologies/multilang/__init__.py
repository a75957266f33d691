"""
Tests of components in other languages and of topologies for C{streamparse}.
"""
