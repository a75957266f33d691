"""
Writes the topologies of a file for C{streamparse} or C{heronpy} as JSON, for
L{pylogbroker.topologies.multilang.definitions}. A program that runs with the author's Python.

What the file writes to standard output goes to standard error.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any

HERON_KEY = "pylogbroker.heron"
"""What a component for C{heronpy} needs to know, in its configuration."""

TICKS_KEY = "topology.tick.tuple.freq.secs"
HERON_TICKS_KEY = "pylogbroker.heron.ticks"
"""A component for C{heronpy} may set its ticks when it runs, so it has a timer of its own."""

_HERON_KINDS = ("", "shuffle", "fields", "all", "global", "none", "direct", "custom")
"""Groupings, by their numbers."""


def main(dialect: str, path: str, python: str) -> None:
    """
    @param dialect: C{streamparse} or C{heronpy}.
    @param path: of the file.
    @param python: what runs this, and is to run the components.
    """
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    del sys.path[0]  # our own folder
    folder = os.path.dirname(path)
    project = os.path.dirname(folder)
    sources = os.path.join(project, "src")
    folders = [sources, folder, project] if os.path.isdir(sources) else [folder, project]
    sys.path.extend(folders)
    name = os.path.splitext(os.path.basename(path))[0]
    definitions: dict[str, Any] = {"file": path, "python": python, "folders": folders}
    try:
        definitionsOf = streamparseTopologies if dialect == "streamparse" else heronTopologies
        definitions["topologies"] = definitionsOf(path, name)
    except BaseException as error:  # the author's code may raise anything
        traceback.print_exc()
        lines = [
            each.lineno
            for each in traceback.extract_tb(error.__traceback__)
            if os.path.realpath(each.filename) == os.path.realpath(path)
        ]
        where = f"line {lines[-1]}: " if lines else ""
        definitions["error"] = f"{where}{type(error).__name__}: {error}"
    json.dump(definitions, output)
    output.close()


def streamparseTopologies(path: str, name: str) -> list[dict[str, Any]]:
    """As C{sparse} finds them: the classes in the module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)

    from streamparse import Topology

    found: list[Any] = []
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Topology) and value not in found:
            if getattr(value, "specs", None):
                found.append(value)
    own = [each for each in found if each.__module__ == name] or found
    return [
        {
            "name": name if each is own[0] else each.__name__,
            "config": each.config,
            "components": [streamparseComponent(spec) for spec in each.specs],
        }
        for each in own
    ]


def streamparseComponent(spec: Any) -> dict[str, Any]:
    """A component, as JSON."""
    shell = spec.component_object.shell
    javaObject = spec.component_object.java_object
    return {
        "name": spec.name,
        "isSpout": "SpoutSpec" in type(spec).__name__,
        "command": [shell.execution_command, shell.script] if shell else [],
        "jvm": "" if shell else javaObject.full_class_name if javaObject else "a Java object",
        "parallelism": spec.par,
        "config": json.loads(spec.config) if isinstance(spec.config, str) else spec.config,
        "outputs": {name: stream.output_fields for name, stream in spec.outputs.items()},
        "inputs": [
            {"component": key.componentId, "stream": key.streamId, **streamparseGrouping(grouping)}
            for key, grouping in spec.inputs.items()
        ],
    }


def streamparseGrouping(grouping: Any) -> dict[str, Any]:
    """A grouping, as JSON."""
    if grouping.fields is not None:  # none of them: Storm's global grouping
        return {"kind": "fields" if grouping.fields else "global", "fields": grouping.fields}
    if grouping.custom_object is not None:
        return {"kind": "jvm", "jvm": grouping.custom_object.full_class_name}
    if grouping.custom_serialized is not None:
        return {"kind": "jvm", "jvm": "a Java object"}
    kinds = ("all", "none", "direct", "local_or_shuffle", "shuffle")
    (kind, *_) = (each for each in kinds if getattr(grouping, each) is not None)
    return {"kind": kind.replace("_", "-")}


def heronTopologies(path: str, name: str) -> list[dict[str, Any]]:
    """
    As C{heron submit} gets them: what the program writes, given the topology's name; and the
    classes in it, which Heron's command would be told.
    """
    from heronpy.api.topology import Topology
    from heronpy.proto import topology_pb2

    with tempfile.TemporaryDirectory() as folder:
        os.environ["HERON_OPTIONS"] = f"cmdline.topologydefn.tmpdirectory={folder}"
        sys.argv = [path, name]
        values: dict[str, Any] = {}
        try:
            values = runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        written = [os.path.join(folder, each) for each in os.listdir(folder)]
        found = []
        for each in sorted(written, key=os.path.getmtime):
            with open(each, "rb") as file:
                found.append(topology_pb2.Topology.FromString(file.read()))
    for value in values.values():
        if isinstance(value, type) and issubclass(value, Topology):
            its = getattr(value, "protobuf_topology", None)
            if value.__module__ == "__main__" and its is not None:
                if all(its.name != each.name for each in found):
                    found.append(its)
    return [heronTopology(each) for each in found]


def heronTopology(topology: Any) -> dict[str, Any]:
    """A topology, as JSON."""
    config, pickled = heronConfig(topology.topology_config)
    ticks = config.pop(TICKS_KEY, None)
    specs = [(spec, True) for spec in topology.spouts] + [(spec, False) for spec in topology.bolts]
    components = []
    for spec, isSpout in specs:
        name = spec.comp.name
        mine, its = heronConfig(spec.comp.config)
        choosers = [
            {
                "stream": given.stream.id,
                "bolt": bolt.comp.name,
                "chooser": base64.b64encode(given.custom_grouping_object).decode(),
            }
            for bolt in topology.bolts
            for given in bolt.inputs
            if given.stream.component_name == name and _HERON_KINDS[given.gtype] == "custom"
        ]
        outputs = {each.stream.id: [key.key for key in each.schema.keys] for each in spec.outputs}
        for each in choosers:
            outputs[directStream(each["stream"], each["bolt"])] = outputs[each["stream"]]
        known = {"pickled": {**pickled, **its}, "choosers": choosers}
        if mine.get(TICKS_KEY, ticks) is not None:
            mine[HERON_TICKS_KEY] = mine.pop(TICKS_KEY, ticks)
        isPython = spec.comp.class_name and spec.comp.spec == 3  # PYTHON_CLASS_NAME
        components.append(
            {
                "name": name,
                "isSpout": isSpout,
                "command": ["heronpy", spec.comp.class_name] if isPython else [],
                "jvm": "" if isPython else spec.comp.class_name or "a Java object",
                "parallelism": int(mine.get("topology.component.parallelism", 1)),
                "config": {**mine, HERON_KEY: known},
                "outputs": outputs,
                "inputs": [] if isSpout else [heronInput(each, name) for each in spec.inputs],
            }
        )
    return {"name": topology.name, "config": config, "components": components}


def directStream(stream: str, bolt: str) -> str:
    """The stream to a bolt whose tasks the author's code chooses."""
    return f"{stream}..to..{bolt}"


def heronInput(given: Any, bolt: str) -> dict[str, Any]:
    """What a bolt gets, and its grouping, as JSON."""
    kind, stream = _HERON_KINDS[given.gtype], given.stream.id
    fields = [key.key for key in given.grouping_fields.keys]
    if kind == "custom" and given.type == 2:  # PYTHON_OBJECT
        kind, stream = "direct", directStream(stream, bolt)
    elif kind == "custom":
        kind = "jvm"
    found = {"component": given.stream.component_name, "stream": stream, "kind": kind}
    return {**found, "fields": fields, "jvm": "a Java object"}


def heronConfig(config: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are strings, and the others, pickled, in Base64."""
    texts = {each.key: each.value for each in config.kvs if each.HasField("value")}
    pickled = {
        each.key: base64.b64encode(each.serialized_value).decode()
        for each in config.kvs
        if each.HasField("serialized_value")
    }
    return texts, pickled


if __name__ == "__main__":
    main(*sys.argv[1:])
