"""
A consumer that follows spec-0.7 zookeeper §4 to the letter, for groups of theirs and ours: it lets
go of everything in each attempt, claims all or nothing, sleeps, and gives up after four attempts
until the next event. It reads no messages.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.errors import NodeExistsException, NoNodeException
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.zookeeper.ephemeral import createParents


class Consumer07:
    """
    @ivar owned: topic and C{<broker>-<partition>}, and the thread that has it.
    @ivar attemptCount: of all rebalances.
    @ivar failureCount: rebalances that ended without success.
    """

    def __init__(
        self,
        clock: Any,
        zookeeper: Any,
        group: str,
        name: str,
        topics: dict[str, int],
        backoffMs: int = 2_000,
    ) -> None:
        self.owned: dict[tuple[str, str], str] = {}
        self.attemptCount = self.failureCount = 0
        self.consumerId = f"{group}_{name}"
        self._clock = clock
        self._zookeeper = zookeeper
        self._root = f"/consumers/{group}"
        self._topics = topics
        self._backoffMs = backoffMs
        self._isBusy = self._isDirty = False

    def start(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self._zookeeper.connect()
        entries = ",".join(f'"{topic}": {count}' for topic, count in self._topics.items())
        await self._createEphemeral(
            f"{self._root}/ids/{self.consumerId}", f"{{ {entries} }}".encode()
        )
        self._watch(f"{self._root}/ids")
        for topic in self._topics:
            self._watch(f"/brokers/topics/{topic}")
        self._trigger()

    def stop(self) -> Deferred[None]:
        self._isBusy = True
        return self._zookeeper.close()

    def _watch(self, path: str) -> None:
        result, fired = self._zookeeper.get_children_and_watch(path)
        result.addErrback(lambda failure: failure.trap(NoNodeException))
        fired.addCallbacks(lambda _event: self._seen(path), lambda _failure: None)

    def _seen(self, path: str) -> None:
        self._watch(path)
        self._trigger()

    async def _createEphemeral(self, path: str, data: bytes) -> None:
        try:
            await self._zookeeper.create(path, data, flags=EPHEMERAL)
        except NoNodeException:
            await createParents(self._zookeeper, path)
            await self._zookeeper.create(path, data, flags=EPHEMERAL)

    def _trigger(self) -> None:
        self._isDirty = True
        if not self._isBusy:
            self._isBusy = True
            Deferred.fromCoroutine(self._rebalances())

    async def _rebalances(self) -> None:
        while self._isDirty:
            self._isDirty = False
            for _attempt in range(4):
                self.attemptCount += 1
                if await self._attempt():
                    break
                await deferLater(self._clock, self._backoffMs / 1000)
            else:
                self.failureCount += 1
        self._isBusy = False

    async def _attempt(self) -> bool:
        members: dict[str, dict[str, int]] = {}
        for member in await self._zookeeper.get_children(f"{self._root}/ids"):
            data, _stat = await self._zookeeper.get(f"{self._root}/ids/{member}")
            members[member] = json.loads(data)
        assignment: dict[tuple[str, str], str] = {}
        for topic in self._topics:
            threads = sorted(
                f"{member}-{index}"
                for member, wanted in members.items()
                for index in range(wanted.get(topic, 0))
            )
            names: list[str] = []
            for broker in await self._zookeeper.get_children(f"/brokers/topics/{topic}"):
                data, _stat = await self._zookeeper.get(f"/brokers/topics/{topic}/{broker}")
                names += [f"{broker}-{index}" for index in range(int(data))]
            names.sort()
            each, more = divmod(len(names), len(threads))
            for index, thread in enumerate(threads):
                if thread.startswith(f"{self.consumerId}-"):
                    start = each * index + min(index, more)
                    assignment.update(
                        {
                            (topic, name): thread
                            for name in names[start : start + each + (1 if index < more else 0)]
                        }
                    )
        await self._letGo()
        isSuccess = True
        for (topic, name), thread in assignment.items():
            try:
                await self._createEphemeral(f"{self._root}/owners/{topic}/{name}", thread.encode())
                self.owned[topic, name] = thread
            except NodeExistsException:
                isSuccess = False
        if not isSuccess:
            await self._letGo()
        return isSuccess

    async def _letGo(self) -> None:
        for topic, name in list(self.owned):
            await self._zookeeper.delete(f"{self._root}/owners/{topic}/{name}")
            del self.owned[topic, name]
