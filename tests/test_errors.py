"""
Tests of the tree of errors.
"""

from __future__ import annotations

import errno
import inspect
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import errors
from pylogbroker.errors import (
    ERRORS_BY_CODE,
    FormatError,
    OffsetOutOfRangeError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    RemoteError,
    RemoteFetchSizeError,
    RemoteInvalidMessageError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    RemoteUnknownError,
    StorageError,
    errorForCode,
)

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


class TreeTests(SynchronousTestCase):
    """One tree, whose branches say whose fault it was."""

    def test_oneRoot(self) -> None:
        """
        Every error of ours is a PylogbrokerError, and its name ends in Error; but for ZooKeeper's,
        which have txzookeeper's names.
        """
        self.assertGreater(len(CLASSES), 20)
        for each in CLASSES:
            self.assertTrue(issubclass(each, PylogbrokerError), each)
            ending = (
                "Exception"
                if issubclass(each, errors.ZookeeperError) and each is not errors.ZookeeperError
                else "Error"
            )
            self.assertTrue(each.__name__.endswith(ending), each)

    def test_everyErrorIsExplained(self) -> None:
        """Every error has a docstring of its own."""
        self.assertEqual([each for each in CLASSES if not each.__dict__.get("__doc__")], [])

    def test_notTheBuiltIn(self) -> None:
        """Our ConnectionError is no OSError: what catches the one does not catch the other."""
        self.assertFalse(issubclass(errors.BrokerConnectionError, OSError))

    def test_remoteIsTheSameAsLocal(self) -> None:
        """
        An offset or partition that the broker refuses can be caught by the word that the broker
        itself uses.
        """
        self.assertTrue(issubclass(RemoteOffsetOutOfRangeError, OffsetOutOfRangeError))
        self.assertTrue(issubclass(RemotePartitionError, PartitionOutOfRangeError))


class AnotherTests(SynchronousTestCase):
    """An error that is told again and again."""

    def test_same(self) -> None:
        """
        It says the same, with the same cause, and has nothing of the times that the first was
        raised.
        """
        first = FormatError("broken", 7)
        try:
            try:
                raise ValueError
            except ValueError as cause:
                raise first from cause
        except FormatError:
            second = errors.copyForReraise(first)
        self.assertEqual(
            (type(second), str(second), vars(second)), (FormatError, str(first), vars(first))
        )
        self.assertIsInstance(second.__cause__, ValueError)
        self.assertIs(second.__traceback__, None)
        self.assertIs(second.__context__, None)

    def test_all(self) -> None:
        """There is another of each class, whatever it is made of."""
        classes: list[Any] = list(CLASSES)
        for each in classes:
            error = (
                each("a", "b", "c")
                if issubclass(each, StorageError | errors.ZnodeError)
                else each.__new__(each, "a")
            )
            second = errors.copyForReraise(error)
            self.assertEqual(
                (type(second), second.args, str(second), second is error),
                (each, error.args, str(error), False),
            )


class FormatErrorTests(SynchronousTestCase):
    """Bytes that are no message set."""

    def test_whyAndWhere(self) -> None:
        """Reason and position are there to look at, and in the text; without a position it is 0."""
        for each in CLASSES:
            if issubclass(each, FormatError):
                error = each("magic byte is 7", 120)
                self.assertEqual(
                    (error.reason, error.position, str(error)),
                    ("magic byte is 7", 120, "magic byte is 7 (entry at byte 120)"),
                )
                self.assertEqual(each("why").position, 0)


class StorageErrorTests(SynchronousTestCase):
    """A file operation that failed."""

    def test_whatAndWhere(self) -> None:
        """The text names action, file and reason; the system's number is there if there was one."""
        for each in CLASSES:
            if issubclass(each, StorageError):
                error = each("logs/t-0", "fsync", "no space", errno.ENOSPC)
                self.assertEqual(str(error), "cannot fsync logs/t-0: no space")
                self.assertEqual(
                    (error.path, error.action, error.reason, error.errno),
                    ("logs/t-0", "fsync", "no space", errno.ENOSPC),
                )
                self.assertIs(each("logs", "open", "why").errno, None)


class CodeTests(SynchronousTestCase):
    """The error codes of spec-0.7 wire-protocol §8, in one table."""

    def test_table(self) -> None:
        """-1, 1, 2, 3 and 4 have a class each, which has its code."""
        expected = {
            -1: RemoteUnknownError,
            1: RemoteOffsetOutOfRangeError,
            2: RemoteInvalidMessageError,
            3: RemotePartitionError,
            4: RemoteFetchSizeError,
        }
        self.assertEqual(ERRORS_BY_CODE, expected)
        for code, each in expected.items():
            self.assertIs(type(errorForCode(code)), each)
            self.assertEqual((errorForCode(code).code, each().code), (code, code))

    def test_unrecognised(self) -> None:
        """Any other code is "unknown", as in 0.7's clients, and is kept to look at."""
        for code in (5, 100, -2, -32768):
            error = errorForCode(code)
            self.assertEqual((type(error), error.code), (RemoteUnknownError, code))
            self.assertIn(f"error code {code}, which the protocol does not define", str(error))

    def test_text(self) -> None:
        """The text says what the code means, and what was asked for."""
        self.assertEqual(
            str(errorForCode(3, "of t-7")),
            "Code 3: the topic has no such partition. of t-7",
        )
        self.assertEqual(str(errorForCode(3)), "Code 3: the topic has no such partition.")

    def test_refused(self) -> None:
        """
        The text of code -1 names both reasons that a broker may have, and the place that says
        which.
        """
        text = str(errorForCode(-1, "(t-0 at 5)"))
        for part in ("does not allow the request", "or failed", "log", "(t-0 at 5)"):
            self.assertIn(part, text)

    def test_remoteError(self) -> None:
        """
        A remote error without words says what its class says; with words, those; its code can be
        given.
        """
        self.assertEqual(str(RemoteFetchSizeError()), "Code 4: the fetch size is invalid.")
        self.assertEqual(str(RemoteFetchSizeError("too small")), "too small")
        self.assertEqual((RemoteError().code, RemoteError("x", 9).code), (-1, 9))
