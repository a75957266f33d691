"""
Metrics for Prometheus, and the console, over HTTP.
"""
