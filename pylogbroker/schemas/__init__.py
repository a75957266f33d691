"""
Schemas: Avro by id, which schema may follow which, and what a registry knows. Bytes and values only; needs the extra C{avro}, but for what only frames.
"""
