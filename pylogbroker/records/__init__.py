"""
The message formats: walk, check, encode, decode, for broker, client, Spark and tools. Pure: bytes
in, values out.
"""
