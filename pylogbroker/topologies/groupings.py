"""
Which instances get a tuple: the groupings, as functions from values to tasks. A module of its own,
since they are pure, and other engines need the same answers.

What must be true:

  - Tuples with equal values of the fields of a fields grouping go to one task: no process and no
  version of Python makes a difference. Values are equal as in Python: 1, 1.0 and True are; a list
  and a Python tuple are too, since a tuple arrives as a list.
  - No answer is made anew for each tuple, except a custom grouping's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from itertools import cycle
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from pylogbroker.errors import TupleError
from pylogbroker.topologies.api import Grouping, TopologyContext

Chooser: TypeAlias = Callable[[Sequence[Any]], Sequence[int]]
"""From the values of a tuple to the tasks that get it."""


_STRING = crc32(b"s")  # what comes before the bytes of a string


def chooserOf(
    grouping: Grouping,
    context: TopologyContext,
    stream: str,
    bolt: str,
    localTasks: Sequence[int] = (),
) -> Chooser:
    """
    The function of a grouping, for one instance that emits. A direct grouping has none: the tuple
    names its task.

    @param context: of the instance that emits; C{random} gives where a shuffle begins.
    @param stream: of the instance's component.
    @param bolt: the component that gets the stream.
    @param localTasks: those of the container that the instance is in.
    """
    tasks = tuple(context.componentTasks[bolt])
    kind = grouping.kind
    if kind == "local-or-shuffle":
        tasks = tuple(task for task in tasks if task in localTasks) or tasks
    if kind == "global":
        tasks = (min(tasks),)
    if kind == "custom":
        return _custom(grouping, context, stream, bolt, tasks)
    if len(tasks) == 1 or kind == "all":
        return lambda values: tasks
    if kind == "fields":
        fields = context.streams[context.component][stream]
        return _byFields(tasks, [fields.index(name) for name in grouping.fieldNames])
    return _shuffle(tasks, int(context.random() * len(tasks)))


def _shuffle(tasks: Sequence[int], start: int) -> Chooser:
    take = cycle([(task,) for task in (*tasks[start:], *tasks[:start])]).__next__
    return lambda values: take()


def _byFields(tasks: Sequence[int], places: Sequence[int]) -> Chooser:
    answers = [(task,) for task in tasks]
    count = len(answers)
    if len(places) > 1:
        return lambda values: answers[stableHash([values[at] for at in places]) % count]
    (place,) = places

    def byField(values: Sequence[Any]) -> Sequence[int]:
        value = values[place]
        if type(value) is str:  # most are: what stableHash does, without the call
            return answers[crc32(value.encode("utf-8", "surrogatepass"), _STRING) % count]
        return answers[stableHash(value) % count]

    return byField


def stableHash(value: Any) -> int:
    """
    A number of 32 bits, the same for equal values in each process and Python version.

    @raise TupleError: a value of this type cannot be in a tuple.
    """
    return crc32(_canonical(value))


def _canonical(value: Any) -> bytes:
    """Bytes that are equal when values are. The lengths keep nested values apart."""
    if value is None:
        return b"_"
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return b"b" + bytes(value)
    if isinstance(value, int):  # True is 1
        return b"i%d" % value
    if isinstance(value, float):
        return b"i%d" % int(value) if value.is_integer() else b"f" + repr(value).encode()
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        return b"d" + moment.isoformat().encode()
    if isinstance(value, date | time):
        return b"d" + value.isoformat().encode()
    if isinstance(value, list | tuple):
        return b"l" + _joined([_canonical(each) for each in value])
    if isinstance(value, set | frozenset):
        return b"l" + _joined(sorted(_canonical(each) for each in value))
    if isinstance(value, Mapping):
        pairs = [[_canonical(key), _canonical(each)] for key, each in value.items()]
        return b"m" + _joined([_joined(pair) for pair in sorted(pairs)])
    try:
        return _canonical(msgspec.to_builtins(value))  # as which it arrives
    except TypeError:
        raise TupleError(f"a {type(value).__name__} cannot be grouped by: {value!r:.100}") from None


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _custom(
    grouping: Grouping,
    context: TopologyContext,
    stream: str,
    bolt: str,
    tasks: Sequence[int],
) -> Chooser:
    assert grouping.chooser is not None  # the builder checks it
    author = grouping.chooser()
    author.prepare(context, stream, tasks)
    known = frozenset(tasks)

    def choose(values: Sequence[Any]) -> Sequence[int]:
        chosen = list(author.chooseTasks(values))  # it may be an iterator
        if not known.issuperset(chosen):
            raise TupleError(
                f"the custom grouping of {context.component}.{stream} for {bolt} chose {chosen},"
                f" of the tasks {list(tasks)}"
            )
        return chosen

    return choose
