"""
Tests of Storm's multi-language protocol.
"""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import TupleError, WireError
from pylogbroker.topologies.api import SYSTEM_TASK, TICK_COMPONENT, TICK_STREAM, StreamTuple
from pylogbroker.topologies.multilang.protocol import (
    HEARTBEAT,
    ShellMessageDecoder,
    TupleEncoder,
    decodeMessage,
    encodeCommand,
    encodeMessage,
    encodeValues,
    groupingInWords,
)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None, exclude_categories=())),  # half surrogate pairs, too
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def bodyOf(data: bytes) -> Any:
    """What a subprocess reads: the JSON before the line C{end}."""
    body, end, rest = data.partition(b"\nend\n")
    assert end
    assert not rest
    return json.loads(body)


class DecoderTests(SynchronousTestCase):
    """Messages of subprocesses."""

    @given(st.lists(st.lists(JSON_VALUES, max_size=3), max_size=4), st.data())
    def test_anySplit(self, tuples: list[list[Any]], data: st.DataObject) -> None:
        """Messages are the same, however their bytes are split."""
        stream = b"".join(
            json.dumps({"command": "emit", "tuple": each}, indent=1).encode() + b"\nend\n"
            for each in tuples
        )
        decoder = ShellMessageDecoder()
        got = []
        while stream:
            size = data.draw(st.integers(1, max(1, len(stream))))
            got += decoder.feed(stream[:size])
            stream = stream[size:]
        self.assertEqual([each.tuple for each in got], tuples)

    def test_byteByByte(self) -> None:
        """The line C{end} is found though each of its bytes comes alone."""
        decoder = ShellMessageDecoder()
        got = [
            message
            for byte in b'{"command": "sync"}\nend\n{"pid": 7}\nend\n'
            for message in decoder.feed(bytes((byte,)))
        ]
        self.assertEqual([(each.command, each.pid) for each in got], [("sync", None), ("", 7)])

    def test_defaults(self) -> None:
        """As in Storm, an emit without C{need_task_ids} waits for the task ids."""
        self.assertIs(decodeMessage(b'{"command": "emit"}').needsTaskIds, True)
        message = decodeMessage(b'{"command": "emit", "need_task_ids": false, "stream": null}')
        self.assertIs(message.needsTaskIds, False)
        self.assertIsNone(message.stream)

    def test_nonsense(self) -> None:
        """What is no message is quoted: text, a list, a command that is a number."""
        for body in (b"hello", b"[1]", b'{"command": 3}', b"\xff", b'{"tuple": 1}', b"{" * 9999):
            error = self.assertRaises(WireError, decodeMessage, body)
            self.assertIn(repr(body[:50].decode("utf-8", "backslashreplace"))[:9], str(error))

    def test_sizeMax(self) -> None:
        """A message above the limit is refused, whole or not yet."""
        body = b'{"command": "log", "msg": "%b"}\nend\n' % (b"x" * 100)
        for pieces in ([body], [body[:60], body[60:90], body[90:]], [b"x" * 101]):
            decoder = ShellMessageDecoder(100)
            with self.assertRaises(WireError):
                for piece in pieces:
                    decoder.feed(piece)

    def test_pythonsJson(self) -> None:
        """C{NaN}, infinities and half surrogate pairs, which Python writes, are read."""
        message = decodeMessage(b'{"command": "emit", "tuple": [NaN, -Infinity, "\\ud800"]}')
        assert message.tuple is not None
        nan, infinity, half = message.tuple
        self.assertTrue(math.isnan(nan))
        self.assertEqual((infinity, half), (-math.inf, "\ud800"))


class EncoderTests(SynchronousTestCase):
    """Messages to subprocesses."""

    @given(JSON_VALUES)
    def test_values(self, value: Any) -> None:
        """What JSON has arrives as it was, on one line."""
        data = encodeValues(value)
        self.assertNotIn(b"\n", data)
        self.assertEqual(json.loads(data), value)

    def test_nan(self) -> None:
        """C{NaN} does not become C{null}."""
        (nan, none) = json.loads(encodeValues([math.nan, None]))
        self.assertTrue(math.isnan(nan))
        self.assertIsNone(none)
        self.assertEqual(json.loads(encodeValues({"a": [math.inf]})), {"a": [math.inf]})

    def test_bytes(self) -> None:
        """Bytes become Base64."""
        self.assertEqual(json.loads(encodeValues([b"ab\x00"])), ["YWIA"])

    def test_impossible(self) -> None:
        """A value that JSON cannot have is refused."""
        for value in (object(), [1j], ["\ud800", object()]):
            self.assertRaises(TupleError, encodeValues, value)

    def test_tuple(self) -> None:
        """A tuple has id, component, stream, task and values, as Storm writes them."""
        encoder = TupleEncoder()
        tup = StreamTuple(5, 'wo"rds', "default", 9, ["snow white", 3], ["word", "count"])
        for number in (12, 13):
            self.assertEqual(
                bodyOf(encoder.encode(number, tup)),
                {
                    "id": str(number),
                    "comp": 'wo"rds',
                    "stream": "default",
                    "task": 9,
                    "tuple": ["snow white", 3],
                },
            )

    def test_tick(self) -> None:
        """A tick tuple and a heartbeat come from the system's task."""
        tick = StreamTuple(0, TICK_COMPONENT, TICK_STREAM, SYSTEM_TASK, [60], [])
        got = bodyOf(TupleEncoder().encode(1, tick))
        self.assertEqual(
            (got["comp"], got["stream"], got["task"], got["tuple"]),
            ("__system", "__tick", -1, [60]),
        )
        beat = bodyOf(HEARTBEAT)
        self.assertEqual((beat["stream"], beat["task"]), ("__heartbeat", -1))

    def test_commands(self) -> None:
        """Commands to a spout; the id may be anything that the spout has given."""
        self.assertEqual(bodyOf(encodeCommand("next")), {"command": "next"})
        self.assertEqual(bodyOf(encodeCommand("ack", ["a", 1])), {"command": "ack", "id": ["a", 1]})
        self.assertEqual(bodyOf(encodeMessage([3, 4])), [3, 4])

    def test_groupings(self) -> None:
        """Groupings in a handshake; global is a grouping by no field, as in Storm."""
        self.assertEqual(
            groupingInWords("fields", ("word",)), {"type": "FIELDS", "fields": ["word"]}
        )
        self.assertEqual(groupingInWords("global", ()), {"type": "FIELDS", "fields": []})
        self.assertEqual(groupingInWords("local-or-shuffle", ()), {"type": "LOCAL_OR_SHUFFLE"})
        self.assertEqual(groupingInWords("custom", ()), {"type": "CUSTOM_OBJECT"})
