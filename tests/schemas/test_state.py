"""
Tests for L{pylogbroker.schemas.state}.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import RegistryRefusalError
from pylogbroker.schemas.logrecords import (
    Change,
    ChangeEnvelope,
    DeleteSubject,
    DeleteVersion,
    Initialize,
    Register,
    SetLevel,
)
from pylogbroker.schemas.state import REQUEST_COUNT, STALE, RegistryState, SchemaVersion

SUBJECTS = st.sampled_from(("a", "b"))
BASES = st.tuples(st.integers(0, 4), st.integers(0, 1))
CHANGES = st.one_of(
    st.builds(
        lambda subject, text, basis: Register(subject, text, f"id of {text}", basis),
        SUBJECTS,
        st.sampled_from("xyz"),
        BASES,
    ),
    st.builds(DeleteVersion, SUBJECTS, st.integers(1, 3), st.booleans()),
    st.builds(DeleteSubject, SUBJECTS, st.booleans()),
    st.builds(SetLevel, st.sampled_from(("", "a")), st.sampled_from(("", "NONE"))),
)


class StateCase(SynchronousTestCase):
    """A machine, and what is given to it."""

    def setUp(self) -> None:
        self.state = RegistryState()
        self.numbers = count()

    def apply(self, change: Change) -> Any:
        return self.state.apply(ChangeEnvelope(f"r{next(self.numbers)}", change))

    def register(self, subject: str, text: str) -> SchemaVersion:
        found = self.apply(Register(subject, text, f"id of {text}", self.state.basis(subject)))
        assert isinstance(found, SchemaVersion)
        return found

    def refused(self, code: int, act: Any, *arguments: Any) -> None:
        self.assertEqual(self.assertRaises(RegistryRefusalError, act, *arguments).code, code)


class RegisterTests(StateCase):
    """Versions and ids."""

    def test_ids(self) -> None:
        """
        Ids count from 1; the same schema has the same id in every subject; versions count in each.
        """
        self.assertEqual(self.register("a", "x"), SchemaVersion("a", 1, 1, "x"))
        self.assertEqual(self.register("a", "y"), SchemaVersion("a", 2, 2, "y"))
        self.assertEqual(self.register("b", "y"), SchemaVersion("b", 1, 2, "y"))
        self.assertEqual(
            (self.state.schema(2), self.state.textsSize, self.state.subjectCount), ("y", 2, 2)
        )
        self.assertEqual(list(self.state.usagesOf(2)), [("a", 2), ("b", 1)])
        self.assertEqual(self.state.earlier("a"), [(1, "x"), (2, "y")])
        self.refused(40403, self.state.schema, 3)

    def test_stale(self) -> None:
        """
        What was judged on what is not so any more counts for nothing: another version, a deletion,
        a rule of the subject or of all.
        """
        basis = self.state.basis("a")
        changes: list[Change] = [
            Register("a", "x", "id", basis),
            DeleteVersion("a", 1, False),
            SetLevel("a", "NONE"),
            SetLevel("", "NONE"),
        ]
        for change in changes:
            basis = self.state.basis("a")
            self.apply(change)
            self.refused(STALE, self.apply, Register("a", "y", "other id", basis))
        self.assertEqual(self.state.versions("a", True), [1])

    def test_otherSubjects(self) -> None:
        """A change elsewhere disturbs no judgement."""
        basis = self.state.basis("a")
        self.register("b", "x")
        self.apply(Register("a", "y", "id", basis))
        self.assertEqual(self.state.versions("a"), [1])

    def test_begin(self) -> None:
        """The first entry is known to have been there; another changes nothing."""
        self.assertFalse(self.state.isInitialized)
        self.assertIsNone(self.apply(Initialize()))
        self.assertIsNone(self.apply(Initialize()))
        self.assertTrue(self.state.isInitialized)


class DeleteTests(StateCase):
    """Deleting, in two steps."""

    def test_version(self) -> None:
        """First for new readers, then for good; each once, in this order. The id stays."""
        self.register("a", "x")
        self.register("a", "y")
        self.refused(40407, self.apply, DeleteVersion("a", 1, True))
        self.assertEqual(self.apply(DeleteVersion("a", 1, False)), 1)
        self.assertEqual((self.state.versions("a"), self.state.versions("a", True)), ([2], [1, 2]))
        self.refused(40402, self.state.version, "a", 1)
        self.assertEqual(self.state.version("a", 1, True).text, "x")
        self.refused(40406, self.apply, DeleteVersion("a", 1, False))
        self.assertEqual(self.apply(DeleteVersion("a", 1, True)), 1)
        self.refused(40402, self.apply, DeleteVersion("a", 1, True))
        self.refused(40401, self.apply, DeleteVersion("c", 1, False))
        self.assertEqual((self.state.versions("a", True), self.state.schema(1)), ([2], "x"))

    def test_subject(self) -> None:
        """
        All versions at once, the same two steps; a subject that comes back goes on counting as long
        as its versions are remembered.
        """
        self.register("a", "x")
        self.register("a", "y")
        self.refused(40405, self.apply, DeleteSubject("a", True))
        self.assertEqual(self.apply(DeleteSubject("a", False)), [1, 2])
        self.assertEqual((self.state.subjects(), self.state.subjects(True)), ([], ["a"]))
        self.refused(40404, self.apply, DeleteSubject("a", False))
        self.refused(40401, self.state.versions, "a")
        self.assertEqual(self.register("a", "x"), SchemaVersion("a", 3, 1, "x"))
        self.apply(DeleteSubject("a", False))
        self.assertEqual(self.apply(DeleteSubject("a", True)), [1, 2, 3])
        self.refused(40401, self.apply, DeleteSubject("a", False))
        self.assertEqual(self.register("a", "x"), SchemaVersion("a", 1, 1, "x"))

    def test_find(self) -> None:
        """
        A schema is found in a subject where it is, the latest time that it is; not where it was
        deleted, unless that is asked for.
        """
        for text in ("x", "y"):
            self.register("a", text)
        self.apply(DeleteVersion("a", 1, False))
        self.assertIsNone(self.state.find("a", "id of x"))
        self.assertEqual(self.state.find("a", "id of x", True), SchemaVersion("a", 1, 1, "x"))
        self.register("a", "x")
        self.assertEqual(self.state.find("a", "id of x"), SchemaVersion("a", 3, 1, "x"))
        self.assertIsNone(self.state.find("nowhere", "id of x"))

    def test_places(self) -> None:
        """
        A schema's places are those in which it is; from the ones that were deleted for good it is
        gone.
        """
        for name in ("b", "a"):
            self.register(name, "x")
        self.register("a", "y")
        self.assertEqual(
            (list(self.state.usagesOf(1)), list(self.state.usagesOf(2))),
            ([("a", 1), ("b", 1)], [("a", 2)]),
        )
        self.apply(DeleteVersion("a", 1, False))
        self.assertEqual(
            (list(self.state.usagesOf(1)), list(self.state.usagesOf(1, True))),
            ([("b", 1)], [("a", 1), ("b", 1)]),
        )
        self.apply(DeleteVersion("a", 1, True))
        self.apply(DeleteSubject("b", False))
        self.apply(DeleteSubject("b", True))
        self.assertEqual(
            (
                list(self.state.usagesOf(1, True)),
                self.state.versionCount("a"),
                self.state.versionCount("b"),
            ),
            ([], 1, 0),
        )
        self.register("b", "x")
        self.assertEqual(
            (list(self.state.usagesOf(1)), self.state.versionCount("nowhere")), ([("b", 1)], 0)
        )

    def test_latest(self) -> None:
        """The latest is the last that was not deleted."""
        for text in ("x", "y"):
            self.register("a", text)
        self.apply(DeleteVersion("a", 2, False))
        self.assertEqual(
            (self.state.version("a", None).version, self.state.version("a", None, True).version),
            (1, 2),
        )


class LevelTests(StateCase):
    """Rules."""

    def test_levels(self) -> None:
        """A subject's own, or the general one, which is BACKWARD unless it was set."""
        self.assertEqual(
            (self.state.level(), self.state.level("a"), self.state.ownLevel("a")),
            ("BACKWARD", "BACKWARD", ""),
        )
        self.assertEqual(self.apply(SetLevel("", "NONE")), "NONE")
        self.assertEqual(self.apply(SetLevel("a", "FULL")), "FULL")
        self.assertEqual((self.state.level("a"), self.state.level("b")), ("FULL", "NONE"))
        self.assertEqual(self.apply(SetLevel("a", "")), "FULL")
        self.assertEqual(self.apply(SetLevel("", "")), "BACKWARD")
        self.assertEqual(
            (self.state.level("a"), self.state.ownLevel("a"), self.state.subjects(True)),
            ("BACKWARD", "", []),
        )


class MachineTests(StateCase):
    """What makes two registries one."""

    def test_again(self) -> None:
        """An entry that comes twice counts once."""
        entry = ChangeEnvelope("the same", SetLevel("a", "FULL"))
        self.assertEqual(self.state.apply(entry), "FULL")
        basis = self.state.basis("a")
        self.assertIsNone(self.state.apply(entry))
        self.assertEqual(self.state.basis("a"), basis)

    def test_requestsForgotten(self) -> None:
        """So many requests are remembered, and no more."""
        self.state.apply(ChangeEnvelope("first", SetLevel("", "NONE")))
        for number in range(REQUEST_COUNT):
            self.state.apply(ChangeEnvelope(str(number), Initialize()))
        self.assertEqual(self.state.apply(ChangeEnvelope("first", SetLevel("", "FULL"))), "FULL")

    @given(st.lists(CHANGES, max_size=30))
    def test_deterministic(self, changes: list[Change]) -> None:
        """
        Whatever is applied: two machines know the same behind each entry, ids are dense and never
        change their meaning, and nothing else is raised.
        """
        machines = RegistryState(), RegistryState()
        meaning: dict[int, str] = {}
        for number, change in enumerate(changes):
            outcomes = [
                self.outcome(machine, ChangeEnvelope(str(number), change)) for machine in machines
            ]
            self.assertEqual(outcomes[0], outcomes[1])
            pictures = [self.picture(machine) for machine in machines]
            self.assertEqual(pictures[0], pictures[1])
            for schemaId, text in pictures[0][1].items():
                self.assertEqual(meaning.setdefault(schemaId, text), text)
            self.assertEqual(sorted(meaning), list(range(1, len(meaning) + 1)))

    def outcome(self, state: RegistryState, entry: ChangeEnvelope) -> Any:
        try:
            return state.apply(entry)
        except RegistryRefusalError as error:
            return error.code

    def picture(self, state: RegistryState) -> tuple[Any, dict[int, str]]:
        subjects = {
            name: [state.version(name, number, True) for number in state.versions(name, True)]
            for name in state.subjects(True)
        }
        texts: dict[int, str] = {}
        for schemaId in range(1, 5):
            try:
                texts[schemaId] = state.schema(schemaId)
            except RegistryRefusalError:
                break
        return (subjects, state.subjects(), state.level(), state.level("a")), texts
