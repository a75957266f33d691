"""
The state of topologies in ZooKeeper, below C{/topologies/<name>}. A module of its own, since
masters, executors, stream managers and commands read and write it.

  - C{definition}: L{TopologyDefinition} in JSON. It is there as long as the topology.
  - C{state}: C{active}, C{paused} or C{killed}. Commands write it, the master and executors watch.
  - C{epoch}: how many masters there have been. The number is half of an epoch.
  - C{master}: ephemeral, L{MasterLocation} in JSON.
  - C{scheduler}: ephemeral, of the scheduler that runs the topology.
  - C{containers/<number>}: ephemeral, of the executor.

What must be true:

  - A master's node and its number come into being in one step. A master that has waited cannot act
  under a number that is older than the last one.
  - A program that writes the definition, or removes nodes, has the scheduler's node then. So of
  two that submit one name one runs, and the end of the other removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ClosingException,
    ConfigurationError,
    ConnectionLossException,
    MultiFailedException,
    NoNodeException,
    NotEmptyException,
    PylogbrokerError,
    SessionExpiredException,
    ZookeeperError,
)
from pylogbroker.interfaces import (
    EPHEMERAL,
    CheckOperation,
    CreateOperation,
    IZookeeper,
    SetOperation,
    Stat,
    WatchEvent,
    ZookeeperOperation,
)
from pylogbroker.net.deferreds import Waiters, gatherAll
from pylogbroker.retry import READ_DELAYS, Backoff
from pylogbroker.topologies.plan import (
    ACTIVE,
    EPOCH_BITS,
    KILLED,
    PAUSED,
    MasterLocation,
    TopologyDefinition,
)
from pylogbroker.zookeeper.ephemeral import claimWithin, createPersistent

log = Logger()

ROOT = "/topologies"
STATES = (ACTIVE, PAUSED, KILLED)
_NAME_SIZE_MAX = 200

_ROUNDS_MAX = 10
"""How often a node may come or go between two of our requests."""

_REMOVAL_SECONDS = 1
"""Between two looks whether a topology that was killed has a scheduler."""

Struct = TypeVar("Struct", bound=msgspec.Struct)


class NoSuchTopologyError(PylogbrokerError):
    """No topology of this name was submitted."""


class Watch:
    """
    Follows the data of a node, until L{stop}.

    It reads again when the node changes, comes, goes, and after the end of a session. Errors of
    ZooKeeper are logged and it goes on.
    """

    def __init__(
        self,
        clock: Any,
        zookeeper: IZookeeper,
        path: str,
        changed: Callable[[bytes | None], object],
        random: Callable[[], float],
    ) -> None:
        """
        @param changed: called with the data after each reading; L{None}: there is no such node.
        @param random: numbers from 0 up to, not including, 1.
        """
        self._clock = clock
        self._zookeeper = zookeeper
        self._path = path
        self._changed = changed
        self._backoff = Backoff(random, READ_DELAYS)
        self._isStopped = False
        self._isCalling = False
        self._following: Deferred[None] = Deferred.fromCoroutine(self._follow())
        self._following.addErrback(self._ended)

    async def _follow(self) -> None:
        while True:
            try:
                # It is armed before the data are read: no change falls between the two.
                with _watching(self._zookeeper, self._path) as (looking, fired):
                    data = None
                    if await looking is not None:
                        with suppress(NoNodeException):
                            data, _stat = await self._zookeeper.get(self._path)
                            data = data or b""
                    self._backoff.succeeded()
                    self._isCalling = True
                    self._changed(data)
                    self._isCalling = False
                    if self._isStopped:
                        return
                    await fired
                    continue
            except ClosingException:
                return
            except SessionExpiredException:
                pass  # the next reading waits for the new session
            except ZookeeperError as error:
                log.warn(
                    "Reading {path} failed, trying again: {error}", path=self._path, error=error
                )
            await deferLater(self._clock, self._backoff.failed() / 1000)

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("Watching {path} has ended: this is a bug", failure, path=self._path)

    def stop(self) -> None:
        """End it: C{changed}, which may call this, is not called any more."""
        self._isStopped = True
        if not self._isCalling:
            self._following.cancel()


class StateManager:
    """The nodes of topologies."""

    def __init__(
        self,
        clock: Any,
        zookeeper: IZookeeper,
        random: Callable[[], float],
        root: str = ROOT,
    ) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param zookeeper: connected.
        @param random: numbers from 0 up to, not including, 1.
        @param root: the node of all topologies.
        """
        self._clock = clock
        self._zookeeper = zookeeper
        self._random = random
        self._root = root

    def _path(self, name: str, *parts: str) -> str:
        return "/".join((self._root, name, *parts))

    # -- topologies

    async def topologies(self) -> list[str]:
        """The names of all topologies that were submitted and not removed."""
        try:
            names = await self._zookeeper.get_children(self._root)
        except NoNodeException:
            return []
        found = await gatherAll(
            [self._zookeeper.exists(self._path(each, "definition")) for each in names]
        )
        return [name for name, stat in zip(names, found, strict=True) if stat is not None]

    async def submit(self, definition: TopologyDefinition, state: str = ACTIVE) -> None:
        """
        Write a topology's nodes, over those of one that does not run any more, and become its
        scheduler, in one step.

        @raise ConfigurationError: the name cannot be a node's; a topology of this name runs.
        """
        name = definition.name
        requireName(name)
        contents = (("state", state.encode()), ("definition", msgspec.json.encode(definition)))
        for _round in range(_ROUNDS_MAX):
            await self._requireEnded(name)
            await createPersistent(self._zookeeper, self._path(name, "containers"))
            await createPersistent(self._zookeeper, self._path(name, "epoch"), b"0")
            operations: list[ZookeeperOperation] = [
                CreateOperation(self._path(name, "scheduler"), flags=EPHEMERAL),
                CheckOperation(self._path(name, "containers"), -1),
                CheckOperation(self._path(name, "epoch"), -1),
            ]
            for part, data in contents:
                path = self._path(name, part)
                if await self._zookeeper.exists(path) is None:
                    operations.append(CreateOperation(path, data))
                else:
                    operations.append(SetOperation(path, data))
            try:
                await self._zookeeper.multi(operations)
                return
            except MultiFailedException:
                pass  # another was faster, or has just removed its nodes
        raise ZookeeperError(f"the nodes of topology {name} come and go")

    async def _requireEnded(self, name: str) -> None:
        running = [f"container {each}" for each in await self.containers(name)]
        if await self.master(name) is not None:
            running.append("a master")
        if await self.hasScheduler(name):
            running.append("a scheduler")
        if running:
            raise ConfigurationError(
                f"a topology {name} runs already, with {', '.join(running)}; what has just died is"
                " there until its session ends"
            )

    async def remove(self, name: str) -> bool:
        """
        Remove a topology's nodes, as its scheduler. Those that are not there are no error;
        ephemeral ones of others go with their sessions.

        @return: C{False}: another scheduler has it, and nothing was removed.
        """
        if not await self._claimScheduler(name):
            return await self._zookeeper.exists(self._path(name, "definition")) is None
        # The scheduler's last: while it is there, no other can submit the topology.
        parts = ("definition", "state", "epoch", "containers", "scheduler")
        for path in [*(self._path(name, each) for each in parts), self._path(name)]:
            try:
                await self._zookeeper.delete(path)
            except (NoNodeException, NotEmptyException):
                pass
        return True

    async def whenRemoved(self, name: str, seconds: float) -> bool:
        """
        Wait until a topology that was killed is removed by its scheduler; remove it when it has
        none.

        @return: C{False}: its scheduler has it still after C{seconds}.
        """
        deadline = self._clock.seconds() + seconds
        isOver = False
        change: Waiters[None] = Waiters()

        def changed(event: WatchEvent | None) -> None:
            nonlocal isOver
            isOver = event is not None  # a new submission changes it, too
            change.fire(None)

        # One watch for all the time: the server may end with the topology, so that nothing can be
        # read afterwards.
        definition = self._path(name, "definition")
        with _watching(self._zookeeper, definition) as (looking, fired):
            fired.addCallback(changed)
            try:
                isOver = await looking is None
                while not isOver:
                    if not await self.hasScheduler(name) and await self.remove(name):
                        return True
                    left = deadline - self._clock.seconds()
                    if left <= 0:
                        return False
                    with suppress(defer.TimeoutError):
                        await change.wait().addTimeout(min(left, _REMOVAL_SECONDS), self._clock)
            except ConnectionLossException:
                if not isOver:
                    raise
        return True

    # -- schedulers

    async def hasScheduler(self, name: str) -> bool:
        """Whether a scheduler runs it; one that has just died is there until its session ends."""
        return await self._zookeeper.exists(self._path(name, "scheduler")) is not None

    async def keepScheduler(self, name: str) -> None:
        """
        Remain the scheduler of a topology, in the next session, too, when one has ended.

        @return: when another scheduler has it, or it was removed, or the client was closed.
        """
        backoff = Backoff(self._random, READ_DELAYS)
        while True:
            try:
                if not await self._claimScheduler(name):
                    return
                path = self._path(name, "scheduler")
                with _watching(self._zookeeper, path) as (looking, gone):
                    if await looking is not None:
                        backoff.succeeded()
                        await gone
                continue
            except ClosingException:
                return
            except ZookeeperError as error:
                log.warn(
                    "The scheduler of {name} cannot be announced, trying again: {error}",
                    name=name,
                    error=error,
                )
            await deferLater(self._clock, backoff.failed() / 1000)

    async def _claimScheduler(self, name: str) -> bool:
        """@return: C{False}: another session has its node, or the topology is not there."""
        path, definition = self._path(name, "scheduler"), self._path(name, "definition")
        for _round in range(_ROUNDS_MAX):
            try:
                await self._zookeeper.multi(
                    [CheckOperation(definition, -1), CreateOperation(path, flags=EPHEMERAL)]
                )
                return True
            except MultiFailedException:
                pass
            stat = await self._zookeeper.exists(path)
            if stat is not None:
                return bool(stat.ephemeralOwner == self._zookeeper.session_id)
            if await self._zookeeper.exists(definition) is None:
                return False
        raise ZookeeperError(f"{path} comes and goes")

    async def definition(self, name: str) -> TopologyDefinition:
        """
        @raise NoSuchTopologyError: it was not submitted.
        @raise ConfigurationError: the node cannot be read.
        """
        data, _stat = await self._read(name, "definition")
        return _decoded(data, TopologyDefinition, self._path(name, "definition"))

    async def state(self, name: str) -> str:
        """
        @return: C{active}, C{paused} or C{killed}.
        @raise NoSuchTopologyError: it was not submitted.
        @raise ConfigurationError: the node says something else.
        """
        return decodeState((await self._read(name, "state"))[0])

    async def setState(self, name: str, state: str) -> None:
        """
        @raise NoSuchTopologyError: it was not submitted.
        @raise ConfigurationError: it was killed, which is final.
        """
        data, stat = await self._read(name, "state")
        if decodeState(data) == KILLED != state:
            raise ConfigurationError(f"topology {name} was killed; submit it again")
        try:
            await self._zookeeper.set(self._path(name, "state"), state.encode(), stat.version)
        except NoNodeException:  # it was removed meanwhile
            raise NoSuchTopologyError(f"there is no topology {name}") from None

    async def _read(self, name: str, part: str) -> tuple[bytes, Stat]:
        requireName(name)
        try:
            data, stat = await self._zookeeper.get(self._path(name, part))
        except NoNodeException:
            raise NoSuchTopologyError(f"there is no topology {name}") from None
        return data or b"", stat

    def watchState(self, name: str, changed: Callable[[str | None], object]) -> Watch:
        """
        @param changed: called with the state now and after each change; L{None}: the node is not
            there. It is not called when the node says what no state is.
        """

        def read(data: bytes | None) -> None:
            try:
                state = None if data is None else decodeState(data)
            except ConfigurationError as error:
                log.warn("The state of {name} cannot be used: {error}", name=name, error=error)
            else:
                changed(state)

        return self._watch(self._path(name, "state"), read)

    # -- master

    async def announce(
        self,
        name: str,
        host: str,
        port: int,
        statusPort: int,
        waiting: Callable[[], object] = lambda: None,
    ) -> MasterLocation:
        """
        Become the master of a topology, as soon as there is no other one.

        @param waiting: called when there is one, before the wait for its end.
        @return: with the epoch that the node has now.
        @raise NoSuchTopologyError: it was not submitted.
        @raise ZookeeperError: ZooKeeper has refused a request, or the client was closed.
        """
        backoff = Backoff(self._random, READ_DELAYS)
        while True:
            try:
                found = await self._tryAnnounce(name, host, port, statusPort, waiting)
            except ConnectionLossException as error:
                log.warn("Announcing a master failed, trying again: {error}", error=error)
                await deferLater(self._clock, backoff.failed() / 1000)
                continue
            if found is not None:
                return found

    async def _tryAnnounce(
        self, name: str, host: str, port: int, statusPort: int, waiting: Callable[[], object]
    ) -> MasterLocation | None:
        """@return: L{None}: another master was there, or was faster, and the next call tells."""
        path = self._path(name, "master")
        with _watching(self._zookeeper, path) as (looking, gone):
            stat = await looking
            if stat is not None and stat.ephemeralOwner == self._zookeeper.session_id:
                # An earlier request of ours has worked, and its answer was lost.
                return await self.master(name)
            if stat is not None:
                waiting()
                await gone
                return None
        number, version = await self._masterCount(name)
        location = MasterLocation(host, port, statusPort, (number + 1) << EPOCH_BITS)
        try:
            await self._zookeeper.multi(
                [
                    CreateOperation(path, msgspec.json.encode(location), None, EPHEMERAL),
                    SetOperation(self._path(name, "epoch"), str(number + 1).encode(), version),
                ]
            )
        except MultiFailedException:
            return None
        return location

    async def _masterCount(self, name: str) -> tuple[int, int]:
        """@return: how many masters there have been, and the version of the node that says so."""
        data, stat = await self._read(name, "epoch")
        try:
            return int(data), stat.version
        except ValueError:
            path = self._path(name, "epoch")
            raise ConfigurationError(f"{path}: {data!r} is no number") from None

    async def master(self, name: str) -> MasterLocation | None:
        """The master that is announced; L{None}: there is none now."""
        path = self._path(name, "master")
        try:
            data, _stat = await self._zookeeper.get(path)
        except NoNodeException:
            return None
        return _decoded(data or b"", MasterLocation, path)

    def watchMaster(self, name: str, changed: Callable[[MasterLocation | None], object]) -> Watch:
        """
        @param changed: called with the announced master now and after each change; L{None}: there
            is none, or its node cannot be read.
        """
        path = self._path(name, "master")

        def read(data: bytes | None) -> None:
            location = None
            if data is not None:
                try:
                    location = _decoded(data, MasterLocation, path)
                except ConfigurationError as error:
                    log.warn("The master of {name} cannot be used: {error}", name=name, error=error)
            changed(location)

        return self._watch(path, read)

    # -- containers

    async def claimContainer(
        self, name: str, number: int, patienceMs: int, waiting: Callable[[], None]
    ) -> None:
        """
        Make the ephemeral node of a container ours, when its earlier executor's session is over.

        @param waiting: called once, when the wait begins.
        @raise NodeExistsException: another executor has it still after C{patienceMs}.
        @raise NoSuchTopologyError: the topology was not submitted.
        """
        await self._read(name, "definition")
        await claimWithin(
            self._clock,
            self._zookeeper,
            self._path(name, "containers", str(number)),
            b"",
            patienceMs,
            lambda _conflict: waiting(),
        )

    async def containers(self, name: str) -> list[int]:
        """The numbers of the containers whose executors are there."""
        try:
            found = await self._zookeeper.get_children(self._path(name, "containers"))
        except NoNodeException:
            return []
        return sorted(int(each) for each in found if each.isascii() and each.isdigit())

    def _watch(self, path: str, changed: Callable[[bytes | None], object]) -> Watch:
        return Watch(self._clock, self._zookeeper, path, changed, self._random)


@contextmanager
def _watching(
    zookeeper: IZookeeper, path: str
) -> Iterator[tuple[Deferred[Stat | None], Deferred[WatchEvent | None]]]:
    """
    Watch a node, until the end of the block.

    @return: as of C{exists_and_watch}; the watch fires with L{None} when the session is over.
    """
    looking, fired = zookeeper.exists_and_watch(path)
    watch: Deferred[Any] = fired.addErrback(_sessionOver)
    try:
        yield looking, watch
    finally:
        watch.addErrback(lambda _failure: None)
        watch.cancel()


def _sessionOver(failure: Failure) -> None:
    """Of a watch: the next reading waits for a new session, and says what is."""
    failure.trap(SessionExpiredException, ClosingException)


def requireName(name: str) -> None:
    """
    @raise ConfigurationError: it cannot be a topology's: letters, digits, dot, hyphen and
        underscore can, 200 at most.
    """
    isGood = 0 < len(name) <= _NAME_SIZE_MAX and name not in (".", "..")
    if not isGood or not all(each.isascii() and (each.isalnum() or each in "._-") for each in name):
        raise ConfigurationError(
            f"{name!r} cannot be a topology's name: 1 to {_NAME_SIZE_MAX} letters, digits, dots,"
            " hyphens and underscores can"
        )


def decodeState(data: bytes) -> str:
    """
    @raise ConfigurationError: it is no state.
    """
    state = data.decode(errors="replace")
    if state not in STATES:
        raise ConfigurationError(f"{state!r} is none of {', '.join(STATES)}")
    return state


def _decoded(data: bytes, kind: type[Struct], path: str) -> Struct:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
