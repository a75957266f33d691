"""
C{topology list}, C{describe}, C{activate}, C{deactivate} and C{kill}: the nodes of topologies in
ZooKeeper, and what masters say.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Any

from pylogbroker.cli.commands.topology.masterstatus import NoStatusError, readStatus
from pylogbroker.cli.output import asJson, table, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.net.deferreds import closing
from pylogbroker.topologies.plan import ACTIVE, KILLED, PAUSED, TopologyDefinition
from pylogbroker.topologies.statemanager import StateManager
from pylogbroker.types import formatCount
from pylogbroker.zookeeper.client import ZookeeperClient

COUNTERS = ("emitted", "executed", "acked", "failed")
"""Values of instances that the table shows."""

KILL_SECONDS_MAX = 90
"""How long C{kill} waits for the end; longer than any process is granted, and than a session."""


@asynccontextmanager
async def _opened(options: Namespace, streams: Streams) -> AsyncIterator[StateManager]:
    client = ZookeeperClient.fromSettings(streams.reactor, options.access, options.zookeeper)
    await client.connect(options.timeoutMs)
    async with closing(client):
        yield StateManager(streams.reactor, client, SystemRandom().random)


async def listTopologies(options: Namespace, streams: Streams) -> int:
    """Print the topologies that were submitted."""
    async with _opened(options, streams) as states:
        rows = []
        for name in await states.topologies():
            definition = await states.definition(name)
            running = await states.containers(name)
            rows.append(
                {
                    "topology": name,
                    "state": await states.state(name),
                    "user": definition.user,
                    "containers": len(definition.packing.containers),
                    "running": len([each for each in running if each]),
                    "instances": len(definition.packing.instances),
                }
            )
    if options.json:
        await streams.show(asJson(rows))
    else:
        headings = ("topology", "state", "user", "containers", "running", "instances")
        await streams.show(table(headings, [[row[each] for each in headings] for row in rows]))
    return 0


async def describe(options: Namespace, streams: Streams) -> int:
    """Print a topology's plan, and what its processes have counted."""
    async with _opened(options, streams) as states:
        name = options.name
        definition = await states.definition(name)
        found: dict[str, Any] = {
            "topology": name,
            "state": await states.state(name),
            "user": definition.user,
            "file": definition.file,
            "submittedMs": definition.timeMs,
            "config": definition.config,
            "components": [
                {
                    "name": each.name,
                    "kind": "spout" if each.isSpout else "bolt",
                    "parallelism": each.parallelism,
                    "outputs": each.outputs,
                    "inputs": [
                        {
                            "component": source.component,
                            "stream": source.stream,
                            "grouping": source.grouping,
                            "fields": source.fields,
                        }
                        for source in each.inputs
                    ],
                }
                for each in definition.components
            ],
            "running": await states.containers(name),
            "master": None,
            "status": None,
        }
        location = await states.master(name)
        problem = "there is no master now"
        if location is not None:
            found["master"] = f"{location.host}:{location.port}"
            try:
                found["status"] = await readStatus(streams.reactor, location)
            except NoStatusError as error:
                problem = f"the master does not answer: {error}"
    if options.json:
        await streams.show(asJson(found))
        return 0
    if found["status"] is None:
        streams.warn(problem)
    await streams.show(_page(found, definition))
    return 0


def _page(found: dict[str, Any], definition: TopologyDefinition) -> str:
    components = [
        (
            each["name"],
            each["kind"],
            each["parallelism"],
            ", ".join(
                f"{source['component']}.{source['stream']} by {source['grouping']}"
                + (f" of {', '.join(source['fields'])}" if source["fields"] else "")
                for source in each["inputs"]
            )
            or None,
        )
        for each in found["components"]
    ]
    status = found["status"] or {}
    values = {
        each["source"]: each["values"]
        for each in status.get("metrics", ())
        if each["source"].isdigit()
    }
    connected = {
        instance["task"]
        for each in status.get("containers", ())
        for instance in each["instances"]
        if instance["isConnected"]
    }
    instances = [
        (
            instance.task,
            instance.component,
            instance.index,
            container.number,
            "yes" if instance.task in connected else "no",
            *(_count(values.get(str(instance.task), {}), name) for name in COUNTERS),
        )
        for container in definition.packing.containers
        for instance in container.instances
    ]
    tasks = ("task", "component", "index", "container", "connected", *COUNTERS)
    return (
        f"topology {found['topology']}, {found['state']}, of {found['user']}, from"
        f" {found['file']}\n"
        f"{formatCount(len(instances), 'instance')} in"
        f" {formatCount(len(definition.packing.containers), 'container')}; master"
        f" {found['master'] or 'none'}\n\n"
        + table(("component", "kind", "instances", "inputs"), components)
        + "\n"
        + tableOfRows(tasks, sorted(instances))
    )


def _count(values: dict[str, float], name: str) -> int | None:
    """A value, or the sum of those of its streams."""
    found = [value for key, value in values.items() if key.partition(".")[0] == name]
    return int(sum(found)) if found else None


async def activate(options: Namespace, streams: Streams) -> int:
    """Let spouts emit."""
    return await _change(options, streams, ACTIVE)


async def deactivate(options: Namespace, streams: Streams) -> int:
    """Let spouts rest."""
    return await _change(options, streams, PAUSED)


async def kill(options: Namespace, streams: Streams) -> int:
    """End a topology, and wait until it has ended."""
    name = options.name
    async with _opened(options, streams) as states:
        await states.setState(name, KILLED)
        if not await states.whenRemoved(name, KILL_SECONDS_MAX):
            streams.warn(
                f"topology {name} is being killed, but has not ended within {KILL_SECONDS_MAX} s"
            )
            return 1
    streams.say(f"topology {name} is killed")
    return 0


async def _change(options: Namespace, streams: Streams, state: str) -> int:
    async with _opened(options, streams) as states:
        await states.setState(options.name, state)
        isRunning = bool(await states.containers(options.name))
    more = "" if isRunning else "; nothing of it runs now"
    streams.say(f"topology {options.name} is {state}{more}")
    return 0
