"""Tests for L{pylogbroker.tasks.reports.picture}."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import DEAD_LETTER, MEMORY, Input, Job, Output, Repartition, Store
from pylogbroker.tasks.reports.jobconfig import JobConfig, configOf
from pylogbroker.tasks.reports.picture import BOX_WIDTH, JobGraph, PictureEdge, asDot, asSvg
from pylogbroker.tasks.serdes import STRING
from pylogbroker.tasks.streams import TumblingWindow, buildJob, stream, table

SVG = "{http://www.w3.org/2000/svg}"


def visits(newName: str = "v", **given: Any) -> JobConfig:
    """A job with all that a picture shows."""
    keyed = stream("visits", message=STRING).selectKey(lambda _key, text: text, STRING, "by")
    grouped = keyed.groupByKey().window(TumblingWindow(1000)).lateTo("late")
    named = keyed.join(table("names", STRING, STRING), str.__add__, message=STRING)
    counts = grouped.count("counts").toStream("changes")
    job = buildJob("v", counts.to("out"), named.to("named"), engine=MEMORY, **given)
    return configOf(job if newName == "v" else job.renamed(newName), {})


def copying(source: str, target: str) -> JobConfig:
    """A low-level job."""
    stores, repartitions = [Store("s", engine=MEMORY)], [Repartition("r")]
    name, inputs, outputs = f"{source}-{target}", [Input(source)], [Output(target)]
    return configOf(Job(name, StreamTask, inputs, outputs, stores, repartitions), {})


class GraphTests(SynchronousTestCase):
    """Nodes and edges."""

    def test_steps(self) -> None:
        """A job is its steps, with topics, repartitions and changelogs."""
        graph = JobGraph([visits(onError=DEAD_LETTER)])
        again = "topic v-by-repartition"
        self.assertEqual(
            set(graph.edges),
            {
                PictureEdge("topic visits", "step v visits"),
                PictureEdge("step v visits", "step v by"),
                PictureEdge("step v by", again),
                PictureEdge(again, "step v counts"),
                PictureEdge("step v counts", "topic late"),
                PictureEdge("step v counts", "topic v-counts-changelog", "counts, memory"),
                PictureEdge(
                    "step v counts", "topic v-stream-times-changelog", "stream-times, memory"
                ),
                PictureEdge("step v counts", "step v changes"),
                PictureEdge("step v changes", "step v to"),
                PictureEdge("step v to", "topic out"),
                PictureEdge("topic names", "step v names"),
                PictureEdge("step v names", "topic v-names-changelog", "names, memory"),
                PictureEdge("step v names", "step v join"),
                PictureEdge(again, "step v join"),
                PictureEdge("step v join", "step v to-2"),
                PictureEdge("step v to-2", "topic named"),
                PictureEdge("step v visits", "topic v-dead-letters"),
                PictureEdge("step v names", "topic v-dead-letters"),
                PictureEdge(again, "topic v-dead-letters"),
            },
        )
        self.assertEqual(graph.nodes["step v counts"].title, "counts")
        self.assertIn("tumbling windows of 1,000 ms", graph.nodes["step v counts"].detail)

    def test_renamed(self) -> None:
        """The topics are those of the new name."""
        nodes = JobGraph([visits("w")]).nodes
        self.assertIn("topic out.w", nodes)
        self.assertIn("topic late.w", nodes)
        self.assertIn("topic w-by-repartition", nodes)

    def test_dot(self) -> None:
        """Graphviz' language: steps are boxes with what they do below their names."""
        lines = [line.strip() for line in asDot([visits()]).splitlines()]
        self.assertIn('"step v by" [label="by\\nselectKey", shape=box]', lines)
        self.assertIn('"topic out" [label="out", shape=cds]', lines)
        self.assertIn('"step v to" -> "topic out"', lines)
        self.assertIn(
            '"step v names" -> "topic v-names-changelog" [style=dashed, label="names, memory"]',
            lines,
        )


class SvgTests(SynchronousTestCase):
    """The picture."""

    def boxes(self, *jobs: JobConfig) -> dict[str, tuple[int, int]]:
        """The corner of each box, by its title."""
        root = ElementTree.fromstring(asSvg(jobs))
        return {
            str(group.findtext(f"{SVG}text")): (int(box.attrib["x"]), int(box.attrib["y"]))
            for group in root.iter(f"{SVG}g")
            for box in group.iter(f"{SVG}rect")
        }

    def test_layout(self) -> None:
        """What comes of something is to the right of it, and boxes do not overlap."""
        job = visits()
        boxes = self.boxes(job)
        graph = JobGraph([job])
        self.assertEqual(len(set(boxes.values())), len(graph.nodes) - 2)  # names are there twice
        for start, end, _ in graph.edges:
            left, right = graph.nodes[start].title, graph.nodes[end].title
            if left != right:
                self.assertLessEqual(boxes[left][0] + BOX_WIDTH, boxes[right][0], (start, end))

    def test_long(self) -> None:
        """Text that does not fit is cut; the title has all of it, and odd characters are quoted."""
        job = buildJob("job", stream("in").filter(lambda *_: True, "a" * 60).to("x" * 100))
        text = asSvg([configOf(job, {})])
        self.assertIn(f"<title>{'a' * 60} filter", text)
        self.assertIn("a" * 32 + "…", text)

    def test_cycle(self) -> None:
        """Jobs that write what they read by way of one another are drawn, too."""
        boxes = self.boxes(copying("a", "b"), copying("b", "a"))
        self.assertEqual(
            boxes.keys(),
            {
                "a",
                "b",
                "a-b",
                "b-a",
                *(
                    f"{job}-{topic}"
                    for job in ("a-b", "b-a")
                    for topic in ("s-changelog", "r-repartition")
                ),
            },
        )
        self.assertEqual(len(set(boxes.values())), len(boxes))
