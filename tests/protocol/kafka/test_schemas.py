"""The engine of today's messages: tables, values, and bytes that are not what they should be."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka.schemas import (
    ZERO_UUID,
    ApiMessage,
    MessageTable,
    packUnsignedVarint,
    readUnsignedVarint,
)

TABLE = MessageTable("""
Plain 0-1 none
number 0+ int32
name 0+ string?1+ =none
extra 1+ int8 =7
note 1+ string ~
list 1+ []int16

Rich 0-3 1+
id 0+ uuid
flag 0+ bool =true
data 0+ bytes
batch 0+ records?
parts 0+ []Part?2+
 index 0+ int16
 names 0+ []string
one 0+ Part
maybe 0+ Part? =null
tagged 1+ string? =null #0
again 0+ Part #1@2+
numbers 2+ []int64 #5 ~
ids 3+ []uuid ~

Empty 0 none
things 0+ []Nothing
 none 1+ int8
""")
Plain: Any = TABLE["Plain"]
Rich: Any = TABLE["Rich"]


class ApiMessageTests(SynchronousTestCase):
    """A message has Kafka's fields, and no others."""

    def test_shown(self) -> None:
        """A version shows its own fields; a tagged one only with a value of its own."""
        self.assertEqual(
            list(Plain(number=3).shown(0)), [("number", "int32", 3), ("name", "string", "none")]
        )
        names = [[name for name, _, _ in Rich(tagged=each).shown(2)] for each in (None, "x")]
        untagged = ["id", "flag", "data", "batch", "parts", "one", "maybe"]
        self.assertEqual(names, [untagged, [*untagged, "tagged"]])

    def test_defaults(self) -> None:
        """Fields that are not given have their defaults; lists and structs are never shared."""
        rich = Rich()
        self.assertEqual(
            (rich.id, rich.flag, rich.data, rich.batch, rich.parts, rich.maybe, rich.tagged),
            (ZERO_UUID, True, b"", None, [], None, None),
        )
        self.assertEqual(rich.one, Rich.Part())
        rich.parts.append(Rich.Part(index=3))
        rich.one.index = 9
        self.assertEqual((Rich().parts, Rich().one.index), ([], 0))
        self.assertEqual(Plain(number=3).name, "none")

    def test_unknownFields(self) -> None:
        """A misspelt field is refused at once."""
        with self.assertRaisesRegex(TypeError, "Plain has no nmae"):
            Plain(nmae="x")
        with self.assertRaisesRegex(AttributeError, "Plain has no nmae"):
            Plain().nmae = "x"

    def test_values(self) -> None:
        """Messages with equal fields are equal; the text of one shows what it was given."""
        self.assertEqual(Plain(number=1), Plain(number=1, name="none"))
        self.assertNotEqual(Plain(number=1), Plain(number=2))
        self.assertNotEqual(Plain(), Rich())
        self.assertEqual(repr(Plain(number=1)), "Plain(list=[], number=1)")

    def test_names(self) -> None:
        """A table lists its messages; one that it does not have is a KeyError."""
        self.assertEqual(list(TABLE), ["Plain", "Rich", "Empty"])
        self.assertIs(TABLE["Plain"], Plain)
        with self.assertRaises(KeyError):
            TABLE["Other"]

    def test_roundTrip(self) -> None:
        """What is encoded decodes to the same, in any version; what stands behind it is left."""
        rich = Rich(
            id=bytes(range(16)),
            flag=False,
            data=b"\0\1",
            batch=b"records",
            parts=[Rich.Part(index=1, names=["a", ""]), Rich.Part()],
            maybe=Rich.Part(index=5),
        )
        for version in range(4):
            encoded = rich.encode(version)
            self.assertEqual(
                Rich.decode(b"xx" + encoded + b"yy", version, 2), (rich, 2 + len(encoded))
            )
            self.assertEqual(Rich.decode(memoryview(encoded), version)[0], rich)
        rich.tagged, rich.numbers = "t", [1, -1]
        rich.again.index = 4
        self.assertEqual(Rich.decode(rich.encode(2), 2)[0], rich)

    def test_recordsAreViews(self) -> None:
        """Records are a view of what was decoded; other bytes are copies."""
        frame = Rich(data=b"data", batch=b"records").encode(3)
        found, _ = Rich.decode(frame, 3)
        self.assertIsInstance(found.batch, memoryview)
        self.assertIs(found.batch.obj, frame)
        self.assertEqual(found.data, b"data")

    def test_malformedText(self) -> None:
        """Bytes that are no UTF-8 become U+FFFD, a lone surrogate a question mark, as in Java."""
        self.assertEqual(Plain.decode(b"\0\0\0\1\0\1\xff", 0)[0].name, "\ufffd")
        self.assertEqual(Plain(name="\ud800").encode(0), b"\0\0\0\0\0\1?")

    def test_smallestElement(self) -> None:
        """An element without fields counts as a byte, so that its count is limited, too."""
        Empty: Any = TABLE["Empty"]
        with self.assertRaisesRegex(WireError, "5 elements of at least 1 bytes, where 0 are left"):
            Empty.decode(b"\0\0\0\5", 0)


class EncodingTests(SynchronousTestCase):
    """What a version cannot say is refused."""

    def assertRefused(self, text: str, message: Any, version: int) -> None:
        with self.assertRaisesRegex(WireError, text):
            message.encode(version)

    def test_absentField(self) -> None:
        """
        A field that the version lacks must have its default, unless it is ignorable; default values
        are no reason to refuse.
        """
        self.assertRefused(r"Plain v0\.extra: this version", Plain(extra=8), 0)
        self.assertRefused(r"Plain v0\.list: this version", Plain(list=[1]), 0)
        self.assertRefused(r"Rich v0\.tagged: this version", Rich(tagged="x"), 0)
        self.assertEqual(Plain(note="dropped").encode(0), Plain().encode(0))

    def test_nulls(self) -> None:
        """Null is refused where the version has no null."""
        self.assertRefused(r"Plain v0\.name: null", Plain(name=None), 0)
        self.assertEqual(Plain.decode(Plain(name=None).encode(1), 1)[0].name, None)
        self.assertRefused(r"Rich v1\.parts: null", Rich(parts=None), 1)
        self.assertEqual(Rich.decode(Rich(parts=None).encode(2), 2)[0].parts, None)

    def test_values(self) -> None:
        """Values that do not fit are refused."""
        self.assertRefused("Plain v1: ", Plain(number=1 << 31), 1)
        self.assertRefused("32768 bytes, where 32767 are allowed", Plain(name="x" * 32768), 1)
        self.assertRefused("a uuid of 3 bytes", Rich(id=b"abc"), 1)

    def test_versions(self) -> None:
        """A version that the message does not have is an error of its own."""
        for call in (lambda: Plain().encode(2), lambda: Plain.decode(b"", -1)):
            with self.assertRaisesRegex(UnsupportedVersionError, "0 to 1 are known"):
                call()

    def test_varints(self) -> None:
        """Variable-length integers of up to 31 bits are read as they were packed."""
        for value in (0, 1, 127, 128, 300, 16383, 16384, 1 << 21, 1 << 28, (1 << 31) - 1):
            packed = packUnsignedVarint(value)
            self.assertEqual(readUnsignedVarint(packed, 0, ""), (value, len(packed)))


class DecodingTests(SynchronousTestCase):
    """Bytes that are no message are refused before memory is allocated for them."""

    def assertRefused(self, text: str, cls: Any, data: bytes, version: int, **limits: int) -> None:
        with self.assertRaisesRegex(WireError, text):
            cls.decode(data, version, **limits)

    def test_ends(self) -> None:
        """A message that ends early names the field where it does, wherever that is."""
        self.assertRefused(r"Plain v0\.number at byte 0: the data end at byte 3", Plain, b"abc", 0)
        rich = Rich(
            data=b"d",
            parts=[Rich.Part(index=1, names=["a"])],
            maybe=Rich.Part(),
            tagged="t",
            ids=[bytes(16)],
        )
        for version in range(4):
            rich.tagged = "t" if version else None
            encoded = rich.encode(version)
            for size in range(len(encoded)):
                self.assertRefused(
                    rf"Rich v{version}.* at byte \d+: ", Rich, encoded[:size], version
                )

    def test_runs(self) -> None:
        """In a run of fixed fields, the text names the one that is cut."""
        name = Plain(list=[1]).encode(1)
        self.assertRefused(r"Plain v1\.list at byte 13: ", Plain, name[:-1], 1)
        table = MessageTable("Run 0 none\na 0+ int16\nb 0+ int64\nc 0+ bool")
        self.assertRefused(r"Run v0\.b at byte 2: ", table["Run"], bytes(9), 0)
        self.assertRefused(r"Run v0\.c at byte 10: ", table["Run"], bytes(10), 0)

    def test_nulls(self) -> None:
        """Null is refused where the version has no null."""
        self.assertRefused(r"Plain v0\.name at byte 4: null", Plain, b"\0\0\0\0\xff\xff", 0)
        self.assertRefused(r"Plain v1\.list at byte \d+: null", Plain, bytes(9) + b"\xff" * 4, 1)

    def test_sizes(self) -> None:
        """A size beyond the data is refused, and so is a string that Kafka does not allow."""
        self.assertRefused(
            r"name at byte 4: a size of 9, where 2 bytes are left", Plain, b"\0\0\0\0\0\x09ab", 0
        )
        text = packUnsignedVarint(32769) + b"x" * 32768
        table = MessageTable("Text 0 0+\ntext 0+ string")
        self.assertRefused("a size of 32768, where 32769 bytes", table["Text"], text + b"\0", 0)

    def test_counts(self) -> None:
        """A count is compared with the bytes that are left."""
        head = Plain().encode(1)[:-4]
        self.assertRefused(
            "list at byte 13: 1000000000 elements of at least 2 bytes, where 4 are left",
            Plain,
            head + (1_000_000_000).to_bytes(4, "big") + bytes(4),
            1,
        )

    def test_elements(self) -> None:
        """The elements of all arrays of a message together are limited."""
        parts = [Rich.Part(names=["", ""]) for _ in range(3)]
        encoded = Rich(parts=parts).encode(3)
        self.assertEqual(len(Rich.decode(encoded, 3, elementCountMax=9)[0].parts), 3)
        self.assertRefused(
            r"parts\.names at byte \d+: 2 elements more than", Rich, encoded, 3, elementCountMax=8
        )

    def test_tags(self) -> None:
        """Unknown tags are skipped; known ones have exactly the size that they give."""
        table = MessageTable("Tags 0 0+\nnumber 0+ int32 #1")
        Tags: Any = table["Tags"]
        self.assertEqual(Tags.decode(b"\2\0\3abc\1\4\0\0\0\7", 0), (Tags(number=7), 12))
        self.assertRefused(
            r"Tags v0\.number at byte 1: ends at byte 7, not 8", Tags, b"\1\1\5\0\0\0\7\0", 0
        )
        self.assertRefused(
            "Tags v0 at byte 1: tag 1 of 9 bytes, where 2 are left", Tags, b"\1\1\x09\0\0", 0
        )

    def test_varints(self) -> None:
        """An integer of more than 31 bits is refused, and so is one without an end."""
        for data in (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\1"):
            with self.assertRaisesRegex(WireError, "more than 31 bits"):
                readUnsignedVarint(data, 0, "")
        with self.assertRaisesRegex(WireError, "size at byte 1: the data end at byte 3"):
            readUnsignedVarint(b"x\xff\xff", 1, "size")


class TypeTests(SynchronousTestCase):
    """The classes are ordinary ones."""

    def test_subclasses(self) -> None:
        """Messages and structs are ApiMessages, and not hashable, since they can be changed."""
        self.assertTrue(issubclass(Rich.Part, ApiMessage))
        with self.assertRaises(TypeError):
            hash(Rich())
