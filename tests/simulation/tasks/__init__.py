"""
Jobs in the simulation of whole brokers: random plans, inputs and faults, against a plain function.
"""
