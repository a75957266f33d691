"""
The 2011 dialect on the wire: framing, requests, responses (spec-0.7 wire-protocol §2 to §4). Pure: bytes in, values out. Message sets travel through as bytes.
"""
