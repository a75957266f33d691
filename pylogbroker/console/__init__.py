"""
What a person, or a scraper, sees of a broker or a cluster with HTTP: metrics for Prometheus, and
the page.
"""
