"""
What is thrown at the decoders and at a live broker: bytes that nobody meant, with promises that
must hold whatever they are.
"""
