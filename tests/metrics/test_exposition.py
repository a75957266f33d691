"""
Tests of figures as text.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.exposition import Family, Sample, render


class RenderTests(SynchronousTestCase):
    """The text."""

    def test_families(self) -> None:
        """
        A family is its sentence, its kind and a line for each value; one without values is left
        out.
        """
        text = render(
            [
                Family("a_total", "How many.", (Sample(3),)),
                Family("b", "None.", ()),
                Family(
                    "c",
                    "Some.",
                    (Sample(0.25, {"x": "1", "y": "2"}), Sample(True, {"x": "2", "y": "2"})),
                ),
            ]
        )
        self.assertEqual(
            text.decode(),
            "# HELP a_total How many.\n# TYPE a_total counter\na_total 3\n"
            '# HELP c Some.\n# TYPE c gauge\nc{x="1",y="2"} 0.25\nc{x="2",y="2"} 1\n',
        )

    def test_escaped(self) -> None:
        """Backslashes, quotes and line ends cannot leave their label, nor a line its line."""
        text = render([Family("a", "one\\\ntwo", (Sample(1, {"t": 'q"\\\n}'}),))])
        self.assertEqual(
            text.decode(), '# HELP a one\\\\\\ntwo\n# TYPE a gauge\na{t="q\\"\\\\\\n}"} 1\n'
        )

    def test_notUnicode(self) -> None:
        """Half a surrogate pair, which some language let through, does not break the rest."""
        self.assertIn(b'{t="?"} 1', render([Family("a", "x", (Sample(1, {"t": "\ud800"}),))]))

    def test_nothing(self) -> None:
        """Nothing is nothing."""
        self.assertEqual(render([]), b"")

    def test_large(self) -> None:
        """Whole numbers are whole, however large."""
        self.assertIn(b"a 9223372036854775807\n", render([Family("a", "x", (Sample(2**63 - 1),))]))
