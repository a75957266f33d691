"""
Avro schemas: payloads with schema ids, compatibility, and the state of a registry. Bytes and values
only. Needs the extra C{avro}, except for L{pylogbroker.schemas.rest} and what it imports.
"""
