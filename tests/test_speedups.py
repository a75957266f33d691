"""
Tests of L{pylogbroker.speedups}, and of the C module that it chooses: the same functions, results
and errors as in Python, and the same tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import speedups
from pylogbroker.speedups import VARIABLE, chosen
from tests.fuzz.speedups import Comparison
from tests.nativemodule import ROOT, builtFolder, nativeModule, run

SHARED = (
    "tests.records",
    "tests.protocol.kafka07",
    "tests.cluster.test_kafkapartitioner",
    "tests.producer.kafka",
    "tests.consumer.kafka",
    "tests.broker.test_kafka07",
    "tests.broker.test_formats",
    "tests.contracts.test_simpleconsumer",
)
"""Tests of what uses the functions."""


class ChoiceTests(SynchronousTestCase):
    """L{speedups.choose}."""

    def broken(self, code: str) -> str:
        """The name of a module with some code."""
        folder = Path(self.mktemp())
        folder.mkdir()
        name = f"speedups{Random().getrandbits(64)}"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        self.patch(sys, "path", [str(folder), *sys.path])
        return name

    def test_isPureByDefault(self) -> None:
        """A checkout, and an installation without a request for it, has no C module."""
        found = speedups.choose({}, "pylogbroker._speedupsOfNobody")
        self.assertEqual(found, (None, "pure Python; the C speed-up was not built"))

    def test_isUsedIfBuilt(self) -> None:
        """A module that is there is taken, unless a variable of the environment forbids it."""
        name = self.broken("")
        found = speedups.choose({VARIABLE: ""}, name)
        self.assertIs(found.native, sys.modules[name])
        self.assertEqual(found.description, "with the C speed-up")
        text = "pure Python, since PYLOGBROKER_PURE_PYTHON is set"
        self.assertEqual(speedups.choose({VARIABLE: "1"}, name), (None, text))

    def test_cannotBeLoaded(self) -> None:
        """Python goes on alone where a module cannot be loaded, and says why."""
        name = self.broken("raise ImportError('GLIBC_2.99 not found')")
        text = "pure Python; the C speed-up cannot be loaded: GLIBC_2.99 not found"
        self.assertEqual(speedups.choose({}, name), (None, text))

    def test_chosen(self) -> None:
        """A function of the C module takes the place of the one in Python, where it is loaded."""
        self.patch(speedups, "native", None)
        self.assertIs(chosen("crc32", len), len)
        self.patch(speedups, "native", nativeModule())
        self.assertIs(chosen("crc32", len), nativeModule().crc32)


class EquivalenceTests(SynchronousTestCase):
    """Random and mutated input gives the same results, and the same errors, in Python and C."""

    def compare(self, seed: int) -> Comparison:
        return Comparison(nativeModule(), Random(seed))

    @given(st.integers(0, 1 << 62))
    def test_checksums(self, seed: int) -> None:
        """CRC-32, CRC-32C and murmur2 are those of other libraries and of Python."""
        comparison = self.compare(seed)
        comparison.checksums()
        comparison.hashes()

    @given(st.integers(0, 1 << 62))
    def test_encoding(self, seed: int) -> None:
        """Records are encoded to the same bytes."""
        self.compare(seed).encoding()

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 62))
    def test_rows(self, seed: int) -> None:
        """The records of a damaged batch are the same up to the same error."""
        self.compare(seed).rows()

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 62))
    def test_arrow(self, seed: int) -> None:
        """The buffers of Arrow's columns are the same, with damaged batches up to the error."""
        self.compare(seed).arrow()

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 62))
    def test_order(self, seed: int) -> None:
        """The same records are ordinary, but for timestamps of more than 64 bits."""
        self.compare(seed).order()

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 62))
    def test_sets(self, seed: int) -> None:
        """Message sets of 2011 are encoded and decoded alike, also damaged ones."""
        comparison = self.compare(seed)
        comparison.sets()
        comparison.validation()

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 62))
    def test_frames(self, seed: int) -> None:
        """A receive buffer of requests is split alike, also a damaged one."""
        self.compare(seed).frames()


class WrongArgumentTests(SynchronousTestCase):
    """What Python never passes is a TypeError or a ValueError, and reads no foreign memory."""

    def test_refused(self) -> None:
        """Wrong types, wrong counts and positions outside are refused."""
        native = nativeModule()
        encoder = native.RecordEncoder()
        for call in (
            lambda: native.crc32(),
            lambda: native.crc32("text"),
            lambda: native.crc32c(b"", "text"),
            lambda: native.murmur2(5),
            lambda: native.decodeRecords(dict, (), (), b"", 0, 0, 0, 0, None, 0),
            lambda: native.decodeRecords(int, (), (), b"", 0, 0, 0, 0, None, 0),
            lambda: native.decodeRecords(tuple, (), (), b"", 1, 0, 0, 0, None, 0),
            lambda: native.decodeRecords(tuple, (), (), b"", -1, 0, 0, 0, None, 0),
            lambda: native.areOrdinary(bytearray(), 0, False, 0, 0),
            lambda: native.areOrdinary(b"", 0, False, 0, 0, "text"),
            lambda: native.validatePlain([b""], -1),
            lambda: native.validatePlain([b""], "text"),
            lambda: native.validatePlain([5], 5),
            lambda: native.validatePlain(5, 5),
            lambda: native.validatePlain(5),
            lambda: native.encodePlainSet(()),
            lambda: native.plainPairs(b"", 1, 0, 1),
            lambda: native.plainColumns(b"", -1, 0),
            lambda: native.plainColumns(b"x", 0, (1 << 63) - 1),
            lambda: native.takeRuns(b"", 1, 5),
            lambda: native.ColumnsEncoder().add(b"", 1, 0, 0, 0, None, 0, 0, 0, 1, 1),
            lambda: native.ColumnsEncoder().add(b"", 0, 0, 0, 0, "text", 0, 0, 0, 1, 1),
            lambda: native.ColumnsEncoder().add(b"", 0, 0, 0, 0, None, 0, 0, 0, 1, -1),
            lambda: encoder.extend([1], [b""], [b""]),
            lambda: encoder.extend((1,), [b""], [b""], {}),
            lambda: encoder.extend([1], [b""], [b""], [5]),
            lambda: encoder.extend([1], [], [b""], {}),
            lambda: encoder.extend([1], [b""], [], {}),
            lambda: encoder.extend(["text"], [None], [None], {}),
            lambda: encoder.extend([0], ["text"], [None], {}),
            lambda: encoder.extend([0], [None], [None], {0: 5}),
            lambda: encoder.extend([0], [None], [None], {0: [("name", "text")]}),
            lambda: encoder.extend([0], [None], [None], {0: [(b"name", b"")]}),
            lambda: encoder.extend([0], [None], [None], {0: [("name",)]}),
            lambda: encoder.extend([0], [None], [None], {0: [5]}),
        ):
            self.assertRaises((TypeError, ValueError), call)
        self.assertEqual((encoder.count, encoder.take()), (0, b""))
        wrong = {0: [("\ud800", b"")]}
        self.assertRaises(UnicodeError, encoder.extend, [0], [None], [None], wrong)
        self.assertRaises(OverflowError, encoder.extend, [1 << 63], [None], [None], {})

    def test_unusualPayloads(self) -> None:
        """What is no bytes is left to Python."""
        self.assertIsNone(nativeModule().encodePlainSet([b"", bytearray(b"x")]))


class SharedTests(SynchronousTestCase):
    """The tests of what uses the functions, and the fuzzing."""

    def test_sameTests(self) -> None:
        """They pass with the C module, too."""
        folder = Path(self.mktemp()).resolve()
        done = run(builtFolder(), [f"--temp-directory={folder}", *SHARED])
        self.assertEqual(done.returncode, 0, done.stdout[-4_000:] + done.stderr)
        self.assertIn("PASSED", done.stdout)

    def test_sanitizers(self) -> None:
        """Mutated input makes no access outside of an object."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.speedups", "--count", "500"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("500 cases of each kind from seed 0 on: no difference", done.stdout)
