"""
Mistakes that are planted into containers of tasks, to see that their simulation finds them. Each is
one that a design of Samza's or a proposal of Kafka's is against, or that an author could make here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pylogbroker.cluster.kafka import taskassignor
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.producer.kafka.producer import RecordMetadata
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.inputs.purger import RepartitionPurger
from pylogbroker.tasks.inputs.taskinputs import TaskInputs
from pylogbroker.tasks.outputcommitter import Changed, OutputCommitter
from pylogbroker.tasks.restorer import ChangelogRestorer
from pylogbroker.tasks.standby import StandbyTasks
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.streams import HoppingWindow, JoinWindow, aggregations, plantask
from pylogbroker.tasks.streams.aggregations import _Windows
from pylogbroker.types import ConsumerGroupMetadata, TopicPartition
from tests.simulation.seeds import Plant

_sendChanges = OutputCommitter._sendChanges
_markOf = OutputCommitter._markOf
_commit = OutputCommitter.commit
_restore = ChangelogRestorer.restore
_forConsumer = KafkaTaskSettings.forConsumer
_groupMetadata = KafkaConsumer.groupMetadata
_tick = RepartitionPurger.tick
_addBroadcasts = TaskInputs.addBroadcasts
_apply = StandbyTasks._apply
_startsOf = HoppingWindow.startsOf
_openWindows = _Windows.__init__
_table = plantask._table


async def confirmsNothing(self: OutputCommitter, positions: Iterable[TopicPartition]) -> None:
    """Positions are committed before what was sent is confirmed."""


async def appliesBeforeCommit(
    self: OutputCommitter, changed: Changed, positions: Iterable[TopicPartition]
) -> list[list[RecordMetadata]]:
    """Stores have the changes, and their mark, as soon as the changelog has them."""
    lasts = await _sendChanges(self, changed, positions)
    await self._producer.flush()
    marks = [_markOf(self, store, last) for (_, store, _), last in zip(changed, lasts, strict=True)]
    for (_, store, entries), mark in zip(changed, marks, strict=True):
        await self._worker.submit(partial(store._engine.write, entries, mark))
    return lasts


async def restoresNothing(self: ChangelogRestorer, place: TopicPartition, engine: Any) -> None:
    """A store is used as it is found."""


async def trustsTheMark(self: ChangelogRestorer, place: TopicPartition, engine: Any) -> None:
    """A store that has a mark is not restored."""
    if engine.mark is None:
        await _restore(self, place, engine)


def marksTooFar(
    self: OutputCommitter, store: KeyValueStore[Any, Any], last: list[RecordMetadata]
) -> ChangelogMark:
    """A mark counts a change that is not there yet."""
    mark = _markOf(self, store, last)
    return mark._replace(offset=mark.offset + 1)


def readsUncommitted(self: KafkaTaskSettings, groupId: str | None, warn: Any) -> Any:
    """Changelogs are read with what was aborted."""
    made = _forConsumer(self, groupId, warn)
    return made if groupId is not None else made.replace(isolationLevel=False)


def assignsTwice(counts: Mapping[str, int], members: Sequence[Any]) -> dict[str, str | None]:
    """A task goes to another container before its owner has given it up."""
    return {}


async def beginsWithoutRestoring(self: TaskContainer, reason: Exception) -> None:
    """Behind an aborted transaction the tasks go on with what it has stored."""
    await self._committer.abort()
    places = [place for task in self._tasks.values() for place in task.partitions]
    committed = await self._consumer.committed(places)
    for place in set(self._consumer.assignment()).intersection(places):
        stored = committed[place]
        self._consumer.seek(place, 0 if stored is None else stored.offset)


def keepsWhatFailed(self: KeyValueStore[Any, Any]) -> None:
    """What a message has written that fails stays."""
    self._undo.clear()


async def committedOfPositions(self: OutputCommitter, instances: Iterable[Any]) -> None:
    """The consumer's positions are committed, which are ahead of what tasks have handled."""
    instances = list(instances)
    mine = {instance.partition for instance in instances}
    for place, offset in self._consumer.positions.items():
        for instance in instances:
            if instance.partition == place.partition and place.partition in mine:
                instance.positions[place] = offset
    await _commit(self, instances)


def tellsNoGeneration(self: KafkaConsumer) -> ConsumerGroupMetadata:
    """Positions of a transaction name the group alone, and not which member of it sends them."""
    return ConsumerGroupMetadata(_groupMetadata(self).groupId)


def purgesTooFar(
    self: RepartitionPurger, nowMs: float, committed: Mapping[TopicPartition, int]
) -> None:
    """What is behind a committed position goes, too."""
    _tick(self, nowMs, {place: offset + 2 for place, offset in committed.items()})


async def bootstrapsNothing(
    self: TaskContainer, places: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """A table is read beside its stream."""
    return {}


def dividesBroadcasts(
    self: TaskInputs, places: Iterable[TopicPartition], bootstrapEnds: dict[TopicPartition, int]
) -> None:
    """A task reads one partition of a broadcast input only."""
    _addBroadcasts(self, list(places)[:1], bootstrapEnds)


async def followsAllButTheFirst(
    self: StandbyTasks, store: Any, batch: list[ConsumerRecord]
) -> None:
    """A stand-by leaves the first change out of what it has read at a time."""
    await _apply(self, store, batch[1:] or batch)


def takesWhatIsLate(self: Any, step: Any, around: Any, forward: Any) -> None:
    """A window is open for longer than its grace period."""
    _openWindows(self, step, around, forward)
    self._openMs += step.window.sizeMs


def keepsTheLaterSession(step: Any) -> Any:
    """Of sessions that become one, the messages of the last one are kept."""
    return lambda _key, _earlier, later: later


def takesNoRemoval(step: Any, around: Any, forward: Any) -> Any:
    """A table keeps what was removed."""
    take = _table(step, around, forward)

    def takeSome(key: Any, message: Any, timestamp: int) -> None:
        if message is not None:
            take(key, message, timestamp)

    return takeSome


def startsOfLastWindow(self: HoppingWindow, timestamp: int) -> Iterable[int]:
    """A message is in one window only."""
    return list(_startsOf(self, timestamp))[-1:]


PLANTS = {
    "fencing ignored": Plant(
        "KIP-447", "were sent for", 132, [(KafkaConsumer, "groupMetadata", tellsNoGeneration)]
    ),
    "messages of a repartition deleted before they are handled": Plant(
        "made here", "job1", 23, [(RepartitionPurger, "tick", purgesTooFar)]
    ),
    "a table that is read beside its stream": Plant(
        "Samza's bootstrap streams",
        "was joined with",
        27,
        [(TaskContainer, "_bootstrapEnds", bootstrapsNothing)],
    ),
    "a broadcast input that is divided": Plant(
        "Samza's broadcast streams",
        "was joined with",
        105,
        [(TaskInputs, "addBroadcasts", dividesBroadcasts)],
    ),
    "a stand-by that lacks changes": Plant(
        "KIP-535", "the stand-by of", 12, [(StandbyTasks, "_apply", followsAllButTheFirst)]
    ),
    "a late message that counts": Plant(
        "KIP-633", "is due", 111, [(_Windows, "__init__", takesWhatIsLate)]
    ),
    "sessions that are not merged": Plant(
        "made here", "is due", 44, [(aggregations, "_mergerOf", keepsTheLaterSession)]
    ),
    "a table that keeps what was removed": Plant(
        "made here", "is wrong", 34, [(plantask, "_table", takesNoRemoval)]
    ),
    "a message in one of its windows only": Plant(
        "made here", "is due", 3, [(HoppingWindow, "startsOf", startsOfLastWindow)]
    ),
    "a join that waits for no grace period": Plant(
        "KIP-633",
        "what was sent is wrong",
        8,
        [(JoinWindow, "waitMs", property(lambda window: window.beforeMs + window.afterMs))],
    ),
    "positions committed before outputs are confirmed": Plant(
        "Samza's checkpoints", "were sent for", 12, [(OutputCommitter, "_confirm", confirmsNothing)]
    ),
    "a mark that is written before its transaction is committed": Plant(
        "KIP-892", "is wrong", 99, [(OutputCommitter, "_sendChanges", appliesBeforeCommit)]
    ),
    "a store that is not restored": Plant(
        "Samza's changelogs",
        "and its changelog differ",
        7,
        [(ChangelogRestorer, "restore", restoresNothing)],
    ),
    "a store on the disk that is not restored": Plant(
        "Samza's changelogs",
        "and its changelog differ",
        31,
        [(ChangelogRestorer, "restore", trustsTheMark)],
    ),
    "a mark that is one too far": Plant(
        "made here", "and its changelog differ", 5, [(OutputCommitter, "_markOf", marksTooFar)]
    ),
    "changelogs that are read with what was aborted": Plant(
        "KIP-129", "is wrong", 99, [(KafkaTaskSettings, "forConsumer", readsUncommitted)]
    ),
    "a task that two containers have": Plant(
        "KIP-429", "is wrong", 9, [(taskassignor, "_claims", assignsTwice)]
    ),
    "stores that keep what was aborted": Plant(
        "KIP-892", "is wrong", 99, [(TaskContainer, "_beginAnew", beginsWithoutRestoring)]
    ),
    "what a failed message has written": Plant(
        "made here", "has counted", 2, [(KeyValueStore, "rollBack", keepsWhatFailed)]
    ),
    "positions of what was fetched": Plant(
        "Samza's checkpoints",
        "has counted",
        250,
        [(OutputCommitter, "commit", committedOfPositions)],
    ),
}
