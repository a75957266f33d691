"""
HTTP for the services: a site with its limits, and where it listens.
"""
