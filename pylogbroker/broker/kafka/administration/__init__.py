"""
What operators ask a cluster for: leaders, replicas, and brokers that will not come back.
"""
