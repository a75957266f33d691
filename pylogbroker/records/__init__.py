"""
The message formats: walk, check, encode, decode. The one encoder and decoder for broker, client,
Spark and tools. Pure: bytes in, values out.
"""
