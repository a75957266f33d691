"""
Wire protocols: framing, one package for each dialect, and the calls that all clients share. Pure:
bytes in, values out. Message sets travel through as bytes.
"""
