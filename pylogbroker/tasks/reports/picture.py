"""
Pictures of jobs: topics, steps and stores, as a graph for Graphviz or as SVG. A module of its own,
since a command prints it and a page may show it.

A job of the high-level API is drawn with its steps, another one as a box. The layout is plain: what
comes of something stands to the right of it, at the height of where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from pylogbroker.tasks.reports.jobconfig import (
    BROADCAST,
    CHANGELOG,
    DEAD_LETTERS,
    INPUT,
    OUTPUT,
    REPARTITION,
    JobConfig,
    PlannedTopic,
)

TOPIC, STEP, JOB = "topic", "step", "job"

ONLY_READ = (INPUT, BROADCAST)
READ = (*ONLY_READ, REPARTITION)
"""Kinds of topics."""

COLUMN_WIDTH, ROW_HEIGHT, BOX_WIDTH, BOX_HEIGHT, MARGIN = 290, 56, 230, 42, 20
"""Pixels."""

TEXT_SIZE_MAX = 40
"""Characters of 10 pixels that fit into a box."""

_SHAPES = {
    TOPIC: "shape=cds",
    STEP: "shape=box",
    JOB: "shape=box, style=rounded",
}

_STYLE = (
    "text{font:12px sans-serif;fill:#222}.detail{font-size:10px;fill:#555}"
    ".topic{fill:#fff4d6;stroke:#b58900}.step,.job{fill:#e8f1fb;stroke:#4a7ebb}"
    ".edge{fill:none;stroke:#777}.state{stroke-dasharray:4 3}"
)


class PictureNode(NamedTuple):
    """
    A topic, a step or a job.

    @ivar kind: which of them.
    @ivar title: its name.
    @ivar detail: what it does.
    @ivar job: whose step it is; empty: a topic, or a job.
    """

    kind: str
    title: str
    detail: str = ""
    job: str = ""


class PictureEdge(NamedTuple):
    """
    What goes from one node to another, by their ids.

    @ivar store: whose changes these are, and its engine; empty: they are messages.
    """

    start: str
    end: str
    store: str = ""


class JobGraph:
    """
    Topics, and what reads and writes them.

    @ivar nodes: by id.
    """

    def __init__(self, jobs: Iterable[JobConfig]) -> None:
        self.nodes: dict[str, PictureNode] = {}
        self.edges: list[PictureEdge] = []
        for job in jobs:
            self._add(job)

    def _topic(self, name: str) -> str:
        found = f"topic {name}"
        self.nodes.setdefault(found, PictureNode(TOPIC, name))
        return found

    def _add(self, job: JobConfig) -> None:
        whole = f"job {job.job}"
        if not job.steps:
            self.nodes[whole] = PictureNode(JOB, job.job)
        places: dict[str, str] = {}
        for step in job.steps:
            if step.reads is not None and step.reads == step.writes:  # a repartition is its topic
                places[step.name] = self._topic(step.reads)
            else:
                places[step.name] = place = f"step {job.job} {step.name}"
                detail = " ".join(filter(None, (step.kind, step.details)))
                self.nodes[place] = PictureNode(STEP, step.name, detail, job.job)
        for step in job.steps:
            self.edges += (
                PictureEdge(places[parent], places[step.name])
                for parent in step.parents
                if parent in places  # all, but where a record was too large
            )

        for each in job.topics:
            topic = self._topic(each.topic)
            if not job.steps:
                if each.kind not in ONLY_READ:
                    self.edges.append(PictureEdge(whole, topic, _storeOf(each)))
                if each.kind in READ:
                    self.edges.append(PictureEdge(topic, whole))
                continue
            for step in job.steps:
                place = places[step.name]
                if each.kind in ONLY_READ and step.reads == each.topic:
                    self.edges.append(PictureEdge(topic, place))
                elif (
                    (each.kind == OUTPUT and step.writes == each.topic)
                    or (each.kind == CHANGELOG and each.store in step.stores)
                    or (each.kind == DEAD_LETTERS and step.reads is not None)
                ):
                    self.edges.append(PictureEdge(place, topic, _storeOf(each)))


def _storeOf(topic: PlannedTopic) -> str:
    return "" if topic.store is None else f"{topic.store}, {topic.engine}"


def asDot(jobs: Iterable[JobConfig]) -> str:
    """A graph of jobs in Graphviz' language."""
    graph = JobGraph(jobs)
    lines = ["digraph jobs {", "  rankdir=LR", "  node [fontname=sans]"]
    for place, node in sorted(graph.nodes.items(), key=lambda each: each[1].kind != TOPIC):
        label = "\\n".join(filter(None, (node.title, node.detail)))
        lines.append(f"  {_quoted(place)} [label={_quoted(label)}, {_SHAPES[node.kind]}]")
    for start, end, store in graph.edges:
        style = f" [style=dashed, label={_quoted(store)}]" if store else ""
        lines.append(f"  {_quoted(start)} -> {_quoted(end)}{style}")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def asSvg(jobs: Iterable[JobConfig]) -> str:
    """A picture of jobs, for a browser."""
    graph = JobGraph(jobs)
    places = _layout(graph)
    width = 2 * MARGIN + max(x for x, _ in places.values()) + BOX_WIDTH
    height = 2 * MARGIN + max(y for _, y in places.values()) + BOX_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#777"/></marker>',
    ]
    for start, end, store in graph.edges:
        (left, top), (x, y) = places[start], places[end]
        left, x = left + MARGIN + BOX_WIDTH, x + MARGIN
        top, y = top + MARGIN + BOX_HEIGHT // 2, y + MARGIN + BOX_HEIGHT // 2
        bend = max(40, abs(x - left) // 2)
        title = f"<title>{escape(store)}</title>" if store else ""
        lines.append(
            f'<path class="edge{" state" if store else ""}" marker-end="url(#end)"'
            f' d="M{left} {top}C{left + bend} {top} {x - bend} {y} {x} {y}">{title}</path>'
        )
    for place, node in graph.nodes.items():
        x, y = (each + MARGIN for each in places[place])
        corners = BOX_HEIGHT // 2 if node.kind == TOPIC else 4
        lines += [
            f"<g><title>{escape(' '.join(filter(None, node[1:])))}</title>",
            f'<rect class="{node.kind}" x="{x}" y="{y}" width="{BOX_WIDTH}"'
            f' height="{BOX_HEIGHT}" rx="{corners}"/>',
            _text(x, y + (18 if node.detail else 26), node.title, ""),
            *([_text(x, y + 33, node.detail, "detail")] if node.detail else ()),
            "</g>",
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, kind: str) -> str:
    sizeMax = TEXT_SIZE_MAX if kind else TEXT_SIZE_MAX * 5 // 6
    if len(text) > sizeMax:
        text = text[: sizeMax - 1] + "…"
    return (
        f'<text class="{kind}" x="{x + BOX_WIDTH // 2}" y="{y}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )


def _layout(graph: JobGraph) -> dict[str, tuple[int, int]]:
    """The upper left corner of each node: to the right of all that it comes from."""
    before: dict[str, list[str]] = {place: [] for place in graph.nodes}
    for start, end, _ in graph.edges:
        before[end].append(start)
    columns: dict[str, int] = {}
    waiting = list(graph.nodes)
    while waiting:
        # Where jobs write what they read, by way of one another, the first one begins.
        ready = [place for place in waiting if columns.keys() >= set(before[place])] or waiting[:1]
        for place in ready:
            found = (columns[each] for each in before[place] if each in columns)
            columns[place] = 1 + max(found, default=-1)
        waiting = [place for place in waiting if place not in columns]
    places: dict[str, tuple[int, int]] = {}
    for column in range(max(columns.values(), default=-1) + 1):
        wanted = []
        for number, place in enumerate(graph.nodes):
            if columns[place] == column:
                rows = [places[each][1] for each in before[place] if each in places]
                wanted.append((sum(rows) // len(rows) if rows else 0, number, place))
        free = 0
        for row, _, place in sorted(wanted):
            row = max(row, free)
            places[place] = column * COLUMN_WIDTH, row
            free = row + ROW_HEIGHT
    return places
