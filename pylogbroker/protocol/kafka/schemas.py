"""
Messages of today's protocol: one class for each message and each struct inside one, for all its
versions.

A class is made from a table in Kafka's own words, one line for each field, children indented by one
space::

    FetchRequest 4-18 12+
    clusterId 12+ string? =null #0 ~
    topics 0+ []FetchTopic
     topic 0-12 string ~

The first line gives name, valid versions and the versions that are flexible. Each other line gives
name, versions, and type; C{?} says that the field may be null (C{?7+}: from version 7), C{=} its
default where that is not zero, empty or false, C{#} its tag (C{#1@9+}: tagged from version 9), and
C{~} that it is ignorable: a version that lacks it may drop its value. A struct whose lines stand
above in the same message needs no children.

Types: C{bool int8 int16 uint16 int32 uint32 int64 float64 string uuid bytes records}, structs and
arrays. A uuid is 16 bytes. Records are a L{memoryview} of what was decoded; all other values are
copies. Malformed UTF-8 becomes U+FFFD, as in Kafka. Unknown tagged fields are skipped.

What must be true: no length from the wire is believed. A size is compared with the bytes that are
left, a count with the bytes that so many elements take at least, and the elements of a message are
limited, since a struct of three bytes on the wire is some hundred bytes of memory.

A pair of functions for each message and version is put together at its first use, so that neither
import nor start pays for what is not used. Fields of fixed size that follow one another are read
and written by one L{struct.Struct}.

Rejected: a class for each version, as code generators make them (decision 17); handlers would have
to branch on versions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pylogbroker.errors import UnsupportedVersionError, WireError

ZERO_UUID = bytes(16)
"""The uuid that stands for none."""

ELEMENT_COUNT_MAX = 100_000
"""Elements in all arrays of one message, unless the caller of C{decode} allows another number."""

_LAYOUTS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
_ZEROS = {"string": "", "bytes": b"", "records": None, "uuid": ZERO_UUID, "bool": False}
_STRING_SIZE_MAX = 0x7FFF
_SIZE_MAX = 0x7FFFFFFF
_LAST_VERSION = 0x7FFF

_BYTE = struct.Struct(">b")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_BYTES = [bytes((value,)) for value in range(128)]

_Read = Callable[["_Reader", int], tuple[Any, int]]
_Append = Callable[[Any], object]
_Write = Callable[[_Append, Any], object]
_M = TypeVar("_M", bound="ApiMessage")


class _Range(NamedTuple):
    """Versions, both ends included."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


_NONE = _Range(1, 0)


def _range(text: str) -> _Range:
    if text == "none":
        return _NONE
    if text.endswith("+"):
        return _Range(int(text[:-1]), _LAST_VERSION)
    first, _, last = text.partition("-")
    return _Range(int(first), int(last or first))


class _Field(NamedTuple):
    """One line of a table."""

    name: str
    versions: _Range
    kind: str
    isArray: bool
    struct: type[ApiMessage] | None
    nullable: _Range
    default: Any
    tag: int
    tagged: _Range
    isIgnorable: bool

    def make(self) -> Any:
        """The default, new if it can be changed."""
        if self.default is None:
            return None
        if self.isArray:
            return []
        return self.struct() if self.struct is not None else self.default

    @property
    def isShared(self) -> bool:
        """Whether all instances may share the default."""
        return self.default is None or not (self.isArray or self.struct is not None)


class ApiMessage:
    """
    A message, or a struct in one, whose attributes are Kafka's fields. Structs are attributes of
    the class of their message: C{FetchRequest.FetchTopic}. Arrays are lists.
    """

    _fields: ClassVar[dict[str, _Field]] = {}
    _fresh: ClassVar[tuple[_Field, ...]] = ()
    _versions: ClassVar[_Range] = _NONE
    _flexible: ClassVar[_Range] = _NONE
    _readers: ClassVar[dict[int, _Read]] = {}
    _writers: ClassVar[dict[int, _Write]] = {}

    def __init__(self, **values: Any) -> None:
        """
        @param values: fields; the others get their defaults.
        @raise TypeError: there is no such field.
        """
        own = self.__dict__
        for field in self._fresh:
            if field.name not in values:
                own[field.name] = field.make()
        if not values.keys() <= self._fields.keys():
            unknown = ", ".join(sorted(values.keys() - self._fields.keys()))
            raise TypeError(f"{type(self).__name__} has no {unknown}")
        own.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        self.__dict__[name] = value

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({shown})"

    def shown(self, version: int) -> Iterator[tuple[str, str, Any]]:
        """
        What a version has of the message, for people: name, type and value of each field; of
        tagged fields only those that have another value than the default.
        """
        for field in self._fields.values():
            value = getattr(self, field.name)
            isTagged = field.tagged.has(version)
            if field.versions.has(version) and not (isTagged and value == field.make()):
                yield field.name, field.kind, value

    @classmethod
    def decode(
        cls: type[_M],
        data: bytes | memoryview,
        version: int,
        position: int = 0,
        elementCountMax: int = ELEMENT_COUNT_MAX,
    ) -> tuple[_M, int]:
        """
        Decode a message; what stands behind it stays for the caller.

        @param data: the frame; records refer to it.
        @param position: the byte of C{data} where the message begins.
        @param elementCountMax: elements in all arrays together.
        @return: the message, and the position behind it.
        @raise UnsupportedVersionError: the message has no such version.
        @raise WireError: the bytes are no such message; the text names message, field and byte.
        """
        read = cls._readers.get(version)
        if read is None:
            read = _structReader(cls, version, _Where(cls, version))
            cls._readers[version] = read
        return read(_Reader(data, elementCountMax), position)

    def encode(self, version: int) -> bytes:
        """
        @raise UnsupportedVersionError: the message has no such version.
        @raise WireError: a value does not fit, or the version lacks a field that is not ignorable
            and has another value than its default; the text names message and field.
        """
        write = self._writers.get(version)
        if write is None:
            write = _structWriter(type(self), version, _Where(type(self), version))
            self._writers[version] = write
        parts: list[bytes] = []
        try:
            write(parts.append, self)
        except struct.error as error:
            raise WireError(f"{type(self).__name__} v{version}: {error}") from error
        return b"".join(parts)


class MessageTable:
    """The classes of the messages in a text, each made when it is first asked for."""

    def __init__(self, text: str) -> None:
        """
        @param text: tables, see the head of this module, with an empty line between any two.
        """
        self._texts = {
            block.lstrip("\n").partition(" ")[0]: block for block in text.strip().split("\n\n")
        }
        self._classes: dict[str, type[ApiMessage]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, name: str) -> type[ApiMessage]:
        """
        @raise KeyError: there is no such message.
        """
        made = self._classes.get(name)
        if made is None:
            made = self._classes[name] = _parse(self._texts[name])
        return made


# -- from tables to classes


def _parse(text: str) -> type[ApiMessage]:
    head, *lines = text.strip("\n").split("\n")
    name, versions, flexible = head.split(" ")
    structs: dict[str, type[ApiMessage]] = {}
    fields, _ = _parseFields(lines, 0, 0, structs)
    made = _makeClass(name, fields, structs)
    made._versions, made._flexible = _range(versions), _range(flexible)
    return made


def _parseFields(
    lines: list[str], index: int, depth: int, structs: dict[str, type[ApiMessage]]
) -> tuple[list[_Field], int]:
    """The fields of one depth, from a line on, and the line behind them."""
    fields = []
    while index < len(lines) and lines[index].startswith(" " * depth):
        name, versionText, typeText, *flags = lines[index].split()
        typeText, mark, nullableText = typeText.partition("?")
        kind = typeText.removeprefix("[]")
        index += 1
        if kind[0].isupper() and kind not in structs:
            children, index = _parseFields(lines, index, depth + 1, structs)
            structs[kind] = _makeClass(kind, children, {})
        versions = _range(versionText)
        default: Any = _ZEROS.get(kind, 0)
        tag, tagged, isIgnorable = -1, _NONE, False
        for flag in flags:
            if flag == "~":
                isIgnorable = True
            elif flag[0] == "#":
                tagText, _, taggedText = flag[1:].partition("@")
                tag, tagged = int(tagText), _range(taggedText or versionText)
            else:
                default = _parseDefault(kind, flag[1:])
        isArray = typeText != kind
        if default is not None and (isArray or kind in structs):
            default = kind
        nullable = (_range(nullableText) if nullableText else versions) if mark else _NONE
        fields.append(
            _Field(
                name, versions, kind, isArray, structs.get(kind), nullable, default,
                tag, tagged, isIgnorable,
            )
        )  # fmt: skip
    return fields, index


def _parseDefault(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    return text if kind == "string" else int(text)


def _makeClass(
    name: str, fields: list[_Field], structs: dict[str, type[ApiMessage]]
) -> type[ApiMessage]:
    return type(
        name,
        (ApiMessage,),
        {
            **structs,
            **{field.name: field.default for field in fields if field.isShared},
            "__module__": __name__,
            "_fields": {field.name: field for field in fields},
            "_fresh": tuple(field for field in fields if not field.isShared),
            "_readers": {},
            "_writers": {},
        },
    )


class _Where:
    """A message, its version and the way to one of its fields, for texts and for decisions."""

    __slots__ = ("isFlexible", "text", "version")

    def __init__(self, cls: type[ApiMessage], version: int) -> None:
        if not cls._versions.has(version):
            first, last = cls._versions
            raise UnsupportedVersionError(
                f"{cls.__name__} of version {version}; {first} to {last} are known"
            )
        self.version = version
        self.isFlexible = cls._flexible.has(version)
        self.text = f"{cls.__name__} v{version}"

    def field(self, name: str) -> _Where:
        made = object.__new__(_Where)
        made.version, made.isFlexible = self.version, self.isFlexible
        made.text = f"{self.text}.{name}"
        return made


def _smallestSize(field: _Field, where: _Where) -> int:
    """The bytes that an element of an array, or a field, takes at least."""
    if field.struct is not None:
        size = int(where.isFlexible)
        for child in field.struct._fields.values():
            if child.versions.has(where.version) and not _isTagged(child, where):
                sizeable = child.isArray or (child.nullable.has(where.version) and child.struct)
                size += 1 if sizeable else _smallestSize(child, where)
        return max(size, 1)
    if field.kind == "uuid":
        return 16
    if field.kind in _LAYOUTS:
        return _fixedSize(field)
    return 1 if where.isFlexible else 2 if field.kind == "string" else 4


def _fixedSize(field: _Field) -> int:
    return struct.calcsize(f">{_LAYOUTS[field.kind]}")


def _isTagged(field: _Field, where: _Where) -> bool:
    return where.isFlexible and field.tagged.has(where.version)


def _isFixed(field: _Field, where: _Where) -> bool:
    return field.kind in _LAYOUTS and not field.isArray and not _isTagged(field, where)


def _runs(cls: type[ApiMessage], where: _Where) -> Iterator[list[_Field]]:
    """The fields that stand in a version: those of fixed size in runs, any other alone."""
    run: list[_Field] = []
    for field in cls._fields.values():
        if not field.versions.has(where.version) or _isTagged(field, where):
            continue
        if _isFixed(field, where):
            run.append(field)
            continue
        if run:
            yield run
            run = []
        yield [field]
    if run:
        yield run


# -- decoding


class _Reader:
    """What is decoded, and the elements that its arrays may still have."""

    __slots__ = ("data", "elementCount", "size")

    def __init__(self, data: bytes | memoryview, elementCountMax: int) -> None:
        self.data = data
        self.size = len(data)
        self.elementCount = elementCountMax

    def cut(self, where: str, position: int) -> WireError:
        return WireError(f"{where} at byte {position}: the data end at byte {self.size}")


def readUnsignedVarint(data: bytes | memoryview, position: int, where: str) -> tuple[int, int]:
    """
    An unsigned variable-length integer of at most 31 bits.

    @param where: for the text of the error.
    @return: the integer, and the position behind it.
    @raise WireError: the data end, or it is too large.
    """
    start = position
    try:
        value = data[position]
        position += 1
        if value > 127:
            value &= 127
            for shift in (7, 14, 21, 28):
                byte = data[position]
                position += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
            else:
                value = _SIZE_MAX + 1
    except IndexError:
        raise WireError(f"{where} at byte {start}: the data end at byte {len(data)}") from None
    if value > _SIZE_MAX:
        raise WireError(f"{where} at byte {start}: an unsigned integer of more than 31 bits")
    return value, position


def _sizeReader(where: _Where, layout: struct.Struct) -> _Read:
    """Reads a size or a count; a negative one means null."""
    text, size = where.text, layout.size

    def readCompact(reader: _Reader, position: int) -> tuple[int, int]:
        data = reader.data
        if position < reader.size and data[position] < 128:
            return data[position] - 1, position + 1
        value, position = readUnsignedVarint(data, position, text)
        return value - 1, position

    def readFixed(reader: _Reader, position: int) -> tuple[int, int]:
        if position + size > reader.size:
            raise reader.cut(text, position)
        return layout.unpack_from(reader.data, position)[0], position + size

    return readCompact if where.isFlexible else readFixed


def _runReader(run: list[_Field], where: _Where) -> _Read:
    layout = struct.Struct(">" + "".join(_LAYOUTS[field.kind] for field in run))
    unpack, size = layout.unpack_from, layout.size

    def cut(reader: _Reader, position: int) -> WireError:
        """The run is cut: in its first field that is not whole."""
        fields = iter(run)
        field = next(fields)
        while (end := position + _fixedSize(field)) <= reader.size:
            position, field = end, next(fields)
        return reader.cut(where.field(field.name).text, position)

    def read(reader: _Reader, position: int) -> tuple[Any, int]:
        if position + size > reader.size:
            raise cut(reader, position)
        return unpack(reader.data, position), position + size

    return read


def _contentReader(field: _Field, where: _Where, isNullable: bool) -> _Read:
    """Reads a string, bytes or records."""
    text, kind = where.text, field.kind
    readSize = _sizeReader(where, _SHORT if kind == "string" else _INT)
    sizeMax = _STRING_SIZE_MAX if kind == "string" else _SIZE_MAX

    def take(data: bytes | memoryview, start: int, end: int) -> Any:
        if kind == "string":
            return str(data[start:end], "utf-8", "replace")
        return memoryview(data)[start:end] if kind == "records" else bytes(data[start:end])

    def read(reader: _Reader, position: int) -> tuple[Any, int]:
        size, start = readSize(reader, position)
        if size < 0:
            if isNullable:
                return None, start
            raise WireError(f"{text} at byte {position}: null, which it must not be")
        end = start + size
        if end > reader.size or size > sizeMax:
            raise WireError(
                f"{text} at byte {position}: a size of {size}, where {reader.size - start} bytes"
                f" are left and {sizeMax} are allowed"
            )
        return take(reader.data, start, end), end

    return read


def _uuidReader(where: _Where) -> _Read:
    def read(reader: _Reader, position: int) -> tuple[bytes, int]:
        end = position + 16
        if end > reader.size:
            raise reader.cut(where.text, position)
        return bytes(reader.data[position:end]), end

    return read


def _elementReader(field: _Field, where: _Where) -> _Read:
    """Reads what is no array and not null, or says itself that it is."""
    if field.struct is not None:
        return _structReader(field.struct, where.version, where)
    if field.kind == "uuid":
        return _uuidReader(where)
    if field.kind not in _LAYOUTS:
        return _contentReader(field, where, isNullable=False)
    readRun = _runReader([field], where)

    def read(reader: _Reader, position: int) -> tuple[Any, int]:
        (value,), position = readRun(reader, position)
        return value, position

    return read


def _arrayReader(field: _Field, where: _Where, isNullable: bool) -> _Read:
    text = where.text
    readCount = _sizeReader(where, _INT)
    layout = _LAYOUTS.get(field.kind)
    readElement = _elementReader(field, where)
    smallestSize = _smallestSize(field, where)

    def read(reader: _Reader, position: int) -> tuple[list[Any] | None, int]:
        count, start = readCount(reader, position)
        if count < 0:
            if isNullable:
                return None, start
            raise WireError(f"{text} at byte {position}: null, which it must not be")
        if count * smallestSize > reader.size - start:
            raise WireError(
                f"{text} at byte {position}: {count} elements of at least {smallestSize} bytes,"
                f" where {reader.size - start} are left"
            )
        reader.elementCount -= count
        if reader.elementCount < 0:
            raise WireError(
                f"{text} at byte {position}: {count} elements more than a message may have"
            )
        if layout is not None:
            values = struct.unpack_from(f">{count}{layout}", reader.data, start)
            return list(values), start + count * smallestSize
        made = []
        for _ in range(count):
            value, start = readElement(reader, start)
            made.append(value)
        return made, start

    return read


def _nullableStructReader(field: _Field, where: _Where) -> _Read:
    readStruct = _elementReader(field, where)
    isTagged = _isTagged(field, where)

    def read(reader: _Reader, position: int) -> tuple[Any, int]:
        if position >= reader.size:
            raise reader.cut(where.text, position)
        first = reader.data[position]
        if first == 0 if isTagged else first > 127:
            return None, position + 1
        return readStruct(reader, position + 1)

    return read


def _fieldReader(field: _Field, where: _Where) -> _Read:
    isNullable = field.nullable.has(where.version)
    if field.isArray:
        return _arrayReader(field, where, isNullable)
    if field.struct is not None and isNullable:
        return _nullableStructReader(field, where)
    if field.kind in ("string", "bytes", "records"):
        return _contentReader(field, where, isNullable)
    return _elementReader(field, where)


def _tagsReader(cls: type[ApiMessage], where: _Where) -> Callable[[_Reader, int, Any], int]:
    text = where.text
    tags = {
        field.tag: (field.name, _fieldReader(field, where.field(field.name)))
        for field in cls._fields.values()
        if field.versions.has(where.version) and _isTagged(field, where)
    }

    def read(reader: _Reader, position: int, values: dict[str, Any]) -> int:
        data = reader.data
        count, position = readUnsignedVarint(data, position, text)
        for _ in range(count):
            tag, start = readUnsignedVarint(data, position, text)
            size, start = readUnsignedVarint(data, start, text)
            end = start + size
            if end > reader.size:
                raise WireError(
                    f"{text} at byte {position}: tag {tag} of {size} bytes, where"
                    f" {reader.size - start} are left"
                )
            if tag in tags:
                name, readField = tags[tag]
                values[name], start = readField(reader, start)
                if start != end:
                    raise WireError(
                        f"{text}.{name} at byte {position}: ends at byte {start}, not {end}"
                    )
            position = end
        return position

    return read


def _structReader(cls: type[ApiMessage], version: int, where: _Where) -> _Read:
    steps: list[tuple[tuple[str, ...], str, _Read]] = []
    for run in _runs(cls, where):
        if _isFixed(run[0], where):
            names = tuple(field.name for field in run)
            steps.append((names, "", _runReader(run, where)))
        else:
            (field,) = run
            steps.append(((), field.name, _fieldReader(field, where.field(field.name))))
    fresh = tuple(
        field for field in cls._fresh if not field.versions.has(version) or _isTagged(field, where)
    )
    readTags = _tagsReader(cls, where) if where.isFlexible else None
    new = object.__new__

    def read(reader: _Reader, position: int) -> tuple[ApiMessage, int]:
        made = new(cls)
        values = made.__dict__
        for names, name, readStep in steps:
            value, position = readStep(reader, position)
            if names:
                values.update(zip(names, value, strict=True))
            else:
                values[name] = value
        for field in fresh:
            values[field.name] = field.make()
        if readTags is not None:
            if position < reader.size and reader.data[position] == 0:
                position += 1
            else:
                position = readTags(reader, position, values)
        return made, position

    return read


# -- encoding


def packUnsignedVarint(value: int) -> bytes:
    """The unsigned variable-length form of an integer of at most 31 bits."""
    if value < 128:
        return _BYTES[value]
    packed = bytearray()
    while value > 127:
        packed.append(value & 127 | 128)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _nullError(where: _Where) -> WireError:
    return WireError(f"{where.text}: null, which it must not be")


def _contentWriter(field: _Field, where: _Where, isNullable: bool) -> _Write:
    isCompact, isString = where.isFlexible, field.kind == "string"
    pack = (_SHORT if isString else _INT).pack
    sizeMax = _STRING_SIZE_MAX if isString else _SIZE_MAX
    null = b"\0" if isCompact else pack(-1)

    def write(append: _Append, value: Any) -> None:
        if value is None:
            if not isNullable:
                raise _nullError(where)
            append(null)
            return
        if isString:
            value = value.encode("utf-8", "replace")
        size = len(value)
        if size > sizeMax:
            raise WireError(f"{where.text}: {size} bytes, where {sizeMax} are allowed")
        append(packUnsignedVarint(size + 1) if isCompact else pack(size))
        append(value)

    return write


def _uuidWriter(where: _Where) -> _Write:
    def write(append: _Append, value: bytes) -> None:
        if len(value) != 16:
            raise WireError(f"{where.text}: a uuid of {len(value)} bytes")
        append(value)

    return write


def _elementWriter(field: _Field, where: _Where) -> _Write:
    if field.struct is not None:
        return _structWriter(field.struct, where.version, where)
    if field.kind == "uuid":
        return _uuidWriter(where)
    if field.kind not in _LAYOUTS:
        return _contentWriter(field, where, isNullable=False)
    pack = struct.Struct(f">{_LAYOUTS[field.kind]}").pack
    return lambda append, value: append(pack(value))


def _arrayWriter(field: _Field, where: _Where, isNullable: bool) -> _Write:
    isCompact = where.isFlexible
    layout = _LAYOUTS.get(field.kind)
    writeElement = _elementWriter(field, where)
    null = b"\0" if isCompact else _INT.pack(-1)

    def write(append: _Append, value: Any) -> None:
        if value is None:
            if not isNullable:
                raise _nullError(where)
            append(null)
            return
        count = len(value)
        append(packUnsignedVarint(count + 1) if isCompact else _INT.pack(count))
        if layout is not None:
            append(struct.pack(f">{count}{layout}", *value))
            return
        for element in value:
            writeElement(append, element)

    return write


def _nullableStructWriter(field: _Field, where: _Where) -> _Write:
    writeStruct = _elementWriter(field, where)
    absent = b"\0" if _isTagged(field, where) else _BYTE.pack(-1)

    def write(append: _Append, value: Any) -> None:
        append(absent if value is None else b"\1")
        if value is not None:
            writeStruct(append, value)

    return write


def _fieldWriter(field: _Field, where: _Where) -> _Write:
    isNullable = field.nullable.has(where.version)
    if field.isArray:
        return _arrayWriter(field, where, isNullable)
    if field.struct is not None and isNullable:
        return _nullableStructWriter(field, where)
    if field.kind in ("string", "bytes", "records"):
        return _contentWriter(field, where, isNullable)
    return _elementWriter(field, where)


def _tagsWriter(cls: type[ApiMessage], where: _Where) -> _Write:
    tags = sorted(
        (field.tag, field.name, field.make(), _fieldWriter(field, where.field(field.name)))
        for field in cls._fields.values()
        if field.versions.has(where.version) and _isTagged(field, where)
    )

    def write(append: _Append, value: Any) -> None:
        parts: list[bytes] = []
        count = 0
        for tag, name, default, writeField in tags:
            held = getattr(value, name)
            if held != default:
                content: list[bytes] = []
                writeField(content.append, held)
                size = sum(map(len, content))
                parts += (packUnsignedVarint(tag), packUnsignedVarint(size), *content)
                count += 1
        append(packUnsignedVarint(count))
        for part in parts:
            append(part)

    return write


def _structWriter(cls: type[ApiMessage], version: int, where: _Where) -> _Write:
    steps: list[tuple[Callable[[Any], Any], _Write]] = []
    for run in _runs(cls, where):
        get = attrgetter(*(field.name for field in run))
        if _isFixed(run[0], where):
            steps.append((get, _runWriter(run)))
        else:
            steps.append((get, _fieldWriter(run[0], where.field(run[0].name))))
    refused = [
        (field.name, field.make())
        for field in cls._fields.values()
        if not field.versions.has(version) and not field.isIgnorable
    ]
    writeTags = _tagsWriter(cls, where) if where.isFlexible else None

    def write(append: _Append, value: Any) -> None:
        for name, default in refused:
            if getattr(value, name) != default:
                raise WireError(f"{where.text}.{name}: this version does not have the field")
        for get, writeStep in steps:
            writeStep(append, get(value))
        if writeTags is not None:
            writeTags(append, value)

    return write


def _runWriter(run: list[_Field]) -> _Write:
    pack = struct.Struct(">" + "".join(_LAYOUTS[field.kind] for field in run)).pack
    if len(run) == 1:
        return lambda append, value: append(pack(value))
    return lambda append, values: append(pack(*values))
