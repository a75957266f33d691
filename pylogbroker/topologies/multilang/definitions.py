"""
Topologies that were written for C{streamparse} or C{heronpy}, as they are. A module of its own,
since the command and the processes of a topology read them.

A subprocess with the author's Python runs the file and writes what it defines as JSON, see
L{pylogbroker.topologies.multilang.environment}. We need neither of both, and the author's
environment nothing of ours. The components are subprocesses of the same Python. Those for
C{streamparse} are run as Storm's workers do, by C{streamparse_run}; those for C{heronpy}, which has
no runtime, by a program of ours.

What must be true:

  - A topology for C{streamparse} behaves as on Storm: tuples are tracked unless
  C{topology.acker.executors} is 0, C{topology.workers} is the number of containers, C{par} that of
  instances. One for C{heronpy} has Heron's keys.
  - What needs a JVM is refused by name, before anything runs.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.api import Grouping
from pylogbroker.topologies.multilang.components import ShellBolt, ShellSpout
from pylogbroker.topologies.topology import (
    ATLEAST_ONCE,
    ATMOST_ONCE,
    CONTAINER_COUNT,
    RELIABILITY_MODE,
    StreamId,
    Topology,
    TopologyBuilder,
    loadTopologies,
)

ACKER_EXECUTORS = "topology.acker.executors"
WORKERS = "topology.workers"
"""Storm's keys."""

DEFINITIONS_SUFFIX = ".topology.json"

STREAMPARSE, HERONPY = "streamparse", "heronpy"
"""Dialects of topology files that are not ours."""

_DIALECTS = {"streamparse": STREAMPARSE, "pystorm": STREAMPARSE, "heronpy": HERONPY}
"""By the modules that such a file imports."""

LOAD_SECONDS_MAX = 120
"""How long the author's file may run."""

_STREAMPARSE_RUN = "streamparse_run"
_ENVIRONMENT = Path(__file__).parent / "environment"
_DEFINITIONS = _ENVIRONMENT / "authordefinitions.py"
_HERON_COMPONENT = _ENVIRONMENT / "heroncomponent.py"
_GROUPINGS = {
    "shuffle": Grouping.SHUFFLE,
    "all": Grouping.ALL,
    "global": Grouping.GLOBAL,
    "none": Grouping.NONE,
    "direct": Grouping.DIRECT,
    "local-or-shuffle": Grouping.LOCAL_OR_SHUFFLE,
}


class DefinedInput(msgspec.Struct):
    """
    A stream that a bolt gets.

    @ivar kind: of the grouping; C{jvm}: a class of the JVM, which is C{jvm}.
    """

    component: str
    stream: str
    kind: str
    fields: list[str] = []
    jvm: str = ""


class DefinedComponent(msgspec.Struct):
    """
    A component.

    @ivar command: a program, and its arguments in one string; or C{heronpy}, and a class; empty: it
        needs a JVM.
    @ivar jvm: what needs it.
    @ivar parallelism: how many instances; or how many for each environment.
    @ivar outputs: the fields of each stream.
    """

    name: str
    isSpout: bool
    command: list[str]
    jvm: str
    parallelism: int | dict[str, int]
    config: dict[str, Any] | None
    outputs: dict[str, list[str]]
    inputs: list[DefinedInput]


class DefinedTopology(msgspec.Struct):
    """A topology, and its components in their order."""

    name: str
    config: dict[str, Any]
    components: list[DefinedComponent]


class DefinedFile(msgspec.Struct):
    """
    What a file defines.

    @ivar file: its path.
    @ivar python: the Python of the author's environment.
    @ivar folders: of the modules of the components; they run in the first one.
    @ivar environment: of C{config.json} and of C{par}, as in C{sparse --environment}; L{None}: the
        one that there is.
    @ivar error: why there is no topology; empty: there is.
    """

    file: str = ""
    python: str = ""
    folders: list[str] = []
    environment: str | None = None
    topologies: list[DefinedTopology] = []
    error: str = ""


def dialectOf(path: str) -> str | None:
    """
    What a file is for, by what it imports. It is not run.

    @return: L{STREAMPARSE}, L{HERONPY}, or L{None}: it imports neither.
    @raise ConfigurationError: it cannot be read, or is no Python.
    """
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            dialect = _DIALECTS.get(name.partition(".")[0])
            if dialect is not None:
                return dialect
    return None


def loadAnyTopologies(
    path: str, python: str | None = None, environment: str | None = None
) -> dict[str, Topology]:
    """
    The topologies of a file: one of ours, one for C{streamparse} or C{heronpy}, or what
    L{loadableFile} has written. Blocks.

    @param python: that of the author's environment, which has what the file imports; L{None}: ours.
    @param environment: see L{DefinedFile}.
    @return: by name. As in C{sparse}, the first topology for C{streamparse} is named after its
        file.
    @raise ConfigurationError: the file raises, has no topology, or one that needs a JVM.
    """
    if path.endswith(DEFINITIONS_SUFFIX):
        try:
            definitions = Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        return _topologiesOf(_decoded(definitions))
    dialect = dialectOf(path)
    if dialect is None:
        return loadTopologies(path)
    return _topologiesOf(_defined(path, dialect, python, environment))


def loadableFile(
    path: str, folder: str, python: str | None = None, environment: str | None = None
) -> str:
    """
    A file that L{loadAnyTopologies} loads without the author's Python, since each instance of a
    topology loads it. Blocks.

    @param folder: where it is written.
    @param python: as for L{loadAnyTopologies}, as is C{environment}.
    @return: its path; for a file of ours, C{path} itself.
    @raise ConfigurationError: the author's Python cannot be run, or the file cannot be written.
    """
    if path.endswith(DEFINITIONS_SUFFIX) or (dialect := dialectOf(path)) is None:
        return path
    defined = _defined(path, dialect, python, environment)
    definitions = msgspec.json.encode(defined)
    # Never another content for a topology that runs.
    digest = hashlib.sha256(definitions).hexdigest()[:16]
    written = Path(folder, f"{Path(path).stem}-{digest}{DEFINITIONS_SUFFIX}")
    try:
        written.parent.mkdir(parents=True, exist_ok=True)
        if not written.exists():
            unfinished = written.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(definitions)
            unfinished.replace(written)
    except OSError as error:
        raise ConfigurationError(f"{written} cannot be written: {error.strerror}") from error
    return str(written)


def _defined(path: str, dialect: str, python: str | None, environment: str | None) -> DefinedFile:
    """Run a file with the author's Python."""
    python = python or sys.executable
    if os.sep in python:  # the components run elsewhere
        python = os.path.abspath(python)
    try:
        done = subprocess.run(
            [python, str(_DEFINITIONS), dialect, os.path.abspath(path), python],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_SECONDS_MAX,
            check=False,
        )
    except OSError as error:
        raise ConfigurationError(f"{python} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{path}: with {python}, it has not ended within {LOAD_SECONDS_MAX} s"
        ) from None
    if done.returncode or not done.stdout:
        end = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise ConfigurationError(
            f"{path}: {python} has ended with status {done.returncode}; its standard error ends"
            f" so:\n{end}"
        )
    defined = _decoded(done.stdout)
    if defined.error:
        raise ConfigurationError(f"{path}, {defined.error} (with {python})")
    defined.environment = environment
    return defined


def _decoded(definitions: bytes) -> DefinedFile:
    try:
        return msgspec.json.decode(definitions, type=DefinedFile)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"definitions of topologies cannot be read: {error}") from error


def _topologiesOf(defined: DefinedFile) -> dict[str, Topology]:
    if not defined.topologies:
        raise ConfigurationError(f"{defined.file}: it defines no topology")
    return {each.name: _topologyOf(defined, each) for each in defined.topologies}


def _topologyOf(defined: DefinedFile, definition: DefinedTopology) -> Topology:
    name = definition.name
    where = f"topology {name}"
    options, environment = _options(defined, where)
    config = {**options, **definition.config}
    config = {key: value for key, value in config.items() if value is not None}
    config.setdefault(
        RELIABILITY_MODE,
        ATMOST_ONCE if str(config.get(ACKER_EXECUTORS)) == "0" else ATLEAST_ONCE,
    )
    parallelisms = {
        each.name: _parallelism(each, environment, where) for each in definition.components
    }
    workers = str(config.get(CONTAINER_COUNT, config.get(WORKERS)))
    if workers.isdecimal():  # there may be more than instances
        config[CONTAINER_COUNT] = max(1, min(int(workers), sum(parallelisms.values())))
    folders = os.pathsep.join((*defined.folders, os.environ.get("PYTHONPATH", "")))
    builder = TopologyBuilder(name, config)
    for each in definition.components:
        if not each.command:
            raise ConfigurationError(f"{where}, component {each.name}: {each.jvm} needs a JVM")
        command = _commandOf(each, defined)
        variables = {"PYTHONPATH": folders.rstrip(os.pathsep)}
        if each.command[0] == HERONPY:  # its groupings use hash(): all processes must agree
            variables["PYTHONHASHSEED"] = "0"
        arguments = command, defined.folders[0], variables
        componentConfig = {
            key: value for key, value in (each.config or {}).items() if value is not None
        }
        if each.isSpout:
            builder.setSpout(
                each.name,
                partial(ShellSpout, *arguments),
                parallelisms[each.name],
                config=componentConfig,
                outputs=each.outputs,
            )
        else:
            builder.setBolt(
                each.name,
                partial(ShellBolt, *arguments),
                parallelisms[each.name],
                {
                    StreamId(given.component, given.stream): _groupingOf(given, each.name, where)
                    for given in each.inputs
                },
                config=componentConfig,
                outputs=each.outputs,
            )
    return builder.build()


def _options(defined: DefinedFile, where: str) -> tuple[Mapping[str, Any], str | None]:
    """Of C{config.json}, if the project has one; and the name of the environment."""
    environment = defined.environment
    path = Path(defined.folders[-1], "config.json")
    if not path.is_file():
        return {}, environment
    try:
        environments = json.loads(path.read_bytes()).get("envs", {})
        if environment is None and len(environments) == 1:
            (environment,) = environments
        if environment is None:
            return {}, None
        if environment not in environments:
            raise ConfigurationError(
                f"{where}: {path} has no environment {environment!r}, but"
                f" {', '.join(environments) or 'none'}"
            )
        return dict(environments[environment].get("options", {})), environment
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{where}: {path} cannot be read: {error}") from error


def _parallelism(component: DefinedComponent, environment: str | None, where: str) -> int:
    given = component.parallelism
    if isinstance(given, int):
        return given
    if environment is None and len(given) == 1:
        (environment,) = given
    if environment not in given:
        raise ConfigurationError(
            f"{where}, component {component.name}: its par is for the environments"
            f" {', '.join(given)}, and the environment is {environment or 'not given'}"
        )
    return given[environment]


def _commandOf(component: DefinedComponent, defined: DefinedFile) -> list[str]:
    program, *scripts = component.command
    if program == HERONPY:
        return [defined.python, str(_HERON_COMPONENT), defined.file, *scripts]
    arguments = [word for script in scripts for word in shlex.split(script)]
    if os.path.basename(program) == _STREAMPARSE_RUN:
        return [defined.python, "-m", "streamparse.run", *arguments]
    return [program, *arguments]


def _groupingOf(given: DefinedInput, component: str, where: str) -> Grouping:
    if given.kind == "fields":
        return Grouping.fields(*given.fields)
    grouping = _GROUPINGS.get(given.kind)
    if grouping is None:
        raise ConfigurationError(
            f"{where}, component {component}: the grouping of {given.component}.{given.stream}:"
            f" {given.jvm or given.kind} needs a JVM"
        )
    return grouping
