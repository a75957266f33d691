"""
Where are the tests of an earlier commit now, and was one lost? C{python -m tests.long.testmodules}
compares and prints; C{--output} writes the table.

A test module of the baseline is found again in three ways, all of which count:

  - git saw that its file was renamed, in one commit or in several;
  - a note says so: a line C{old.module -> new.module (reason)} in a C{.txt} file of the folder that
    C{--notes} names. A line without C{->} is a reason only;
  - a test of it, which is not where these two say, stands elsewhere under the same name.

Old and new modules that belong together form a group, since several may have become one and one
several. For each group, and for all, the tests (methods whose names begin with C{test_}) and the
calls of C{assert*} and C{fail} are counted before and now. Helpers without tests take part, since
they assert, too. The exit status is 1 if a group has fewer tests or fewer assertions than before;
these groups are named with the tests whose names are gone, and a note should give the reason.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.long.telling import tell

ROOT = Path(__file__).resolve().parent.parent.parent
BASELINE = "9fe9e7f"
_NAME = re.compile(r"tests(?:\.\w+)+")
_NOT_TESTS = ("tests/golden/", "tests/run")
_HEAD = """\
# Test modules, before and after

Written by `python -m tests.long.testmodules`: where the tests of {baseline} are now. *Tests* are
methods whose names begin with `test_`; *asserts* are calls of `assert*` and `fail`. Old and new
modules that belong together are one row.

| old | now | tests | asserts |
|---|---|---|---|
"""


class Content(NamedTuple):
    """
    What a module of tests holds.

    @ivar tests: C{Class.test_name} of each test.
    @ivar assertCount: how often it asserts something.
    """

    tests: Counter[str]
    assertCount: int


class Group(NamedTuple):
    """
    Modules that belong together.

    @ivar old: dotted names at the baseline.
    @ivar new: dotted names now.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]


def read(text: str) -> Content:
    """Count in the source of a module."""
    tests: Counter[str] = Counter()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            tests.update(
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                and inner.name.startswith("test_")
            )
    assertCount = sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr.startswith("assert") or node.func.attr == "fail")
        for node in ast.walk(tree)
    )
    return Content(tests, assertCount)


def moduleName(path: str) -> str:
    """C{"tests/a/test_b.py"} → C{"tests.a.test_b"}."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def git(*arguments: str) -> str:
    """The output of a command of git."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def isTestSource(path: str) -> bool:
    return path.endswith(".py") and not path.startswith(_NOT_TESTS)


def oldContents(baseline: str) -> dict[str, Content]:
    """The modules of the baseline."""
    paths = git("ls-tree", "-r", "--name-only", baseline, "tests").splitlines()
    return {
        moduleName(path): read(git("show", f"{baseline}:{path}"))
        for path in paths
        if isTestSource(path)
    }


def newContents() -> dict[str, Content]:
    """The modules of the working tree."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard", "tests").splitlines()
    return {
        moduleName(path): read((ROOT / path).read_text(encoding="utf-8"))
        for path in paths
        if isTestSource(path) and (ROOT / path).exists()
    }


def renames(baseline: str) -> list[tuple[str, str]]:
    """What git calls a rename, in the order of the commits."""
    log = git(
        "log", "--reverse", "--topo-order", "--format=", "--name-status", "-M40%",
        "--diff-filter=R", f"{baseline}..HEAD", "--", "tests",
    )  # fmt: skip
    pairs = [line.split("\t") for line in log.splitlines() if line]
    return [(moduleName(old), moduleName(new)) for _, old, new in pairs]


def follow(old: Iterable[str], renamed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The name that each old module has after the renames."""
    now = {name: name for name in old}
    for before, after in renamed:
        for name, current in now.items():
            if current == before:
                now[name] = after
    return now


def inModules(name: str, modules: Iterable[str]) -> str | None:
    """The module in which a dotted name is, be it a class or a test."""
    known = set(modules)
    parts = name.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in known), None)


def readNotes(text: str, old: Iterable[str], new: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs of modules that lines C{old -> new} name."""
    pairs = []
    for line in text.splitlines():
        before, arrow, after = line.partition("->")
        sources = {inModules(name, old) for name in _NAME.findall(before)} - {None}
        targets = {inModules(name, new) for name in _NAME.findall(after)} - {None}
        if arrow:
            pairs += [(str(source), str(target)) for source in sources for target in targets]
    return pairs


def strays(
    old: Mapping[str, Content], new: Mapping[str, Content], pairs: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """
    Pairs for tests that are not in the modules that belong to theirs, but under the same name in
    one other module.
    """
    targets: defaultdict[str, set[str]] = defaultdict(set)
    for before, after in pairs:
        targets[before].add(after)
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module, content in new.items():
        for test in content.tests:
            homes[test].add(module)
    found = []
    for module, content in old.items():
        here = {test for target in targets[module] for test in new[target].tests}
        for test in content.tests.keys() - here:
            # A name that another old module had, too, says nothing.
            isUnique = sum(test in other.tests for other in old.values()) == 1
            if isUnique and len(homes[test]) == 1:
                found += [(module, home) for home in homes[test]]
    return found


def grouped(
    old: Iterable[str], new: Iterable[str], pairs: Iterable[tuple[str, str]]
) -> list[Group]:
    """
    Old and new modules that the pairs connect. One that nothing connects is a group by itself.
    """
    parent: dict[tuple[str, str], tuple[str, str]] = {}
    nodes = [*(("old", name) for name in old), *(("new", name) for name in new)]
    for node in nodes:
        parent[node] = node

    def top(node: tuple[str, str]) -> tuple[str, str]:
        while parent[node] != node:
            node = parent[node]
        return node

    for before, after in pairs:
        parent[top(("new", after))] = top(("old", before))
    members: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for node in nodes:
        members[top(node)].append(node)
    return sorted(
        Group(
            tuple(sorted(name for side, name in group if side == "old")),
            tuple(sorted(name for side, name in group if side == "new")),
        )
        for group in members.values()
    )


def summed(contents: Iterable[Content]) -> Content:
    """All of them together."""
    tests: Counter[str] = Counter()
    assertCount = 0
    for content in contents:
        tests.update(content.tests)
        assertCount += content.assertCount
    return Content(tests, assertCount)


class Comparison:
    """
    Before and now.

    @ivar groups: modules that belong together.
    """

    def __init__(
        self,
        old: Mapping[str, Content],
        new: Mapping[str, Content],
        renamed: Iterable[tuple[str, str]],
        notes: str,
    ) -> None:
        """
        @param old: the modules of the baseline.
        @param new: those of now.
        @param renamed: what git calls a rename.
        @param notes: lines as described at the top.
        """
        self._old, self._new, self._notes = old, new, notes
        pairs = [(name, now) for name, now in follow(old, renamed).items() if now in new]
        pairs += readNotes(notes, old, new)
        pairs += strays(old, new, pairs)
        self.groups = grouped(old, new, pairs)

    def counts(self, group: Group) -> tuple[Content, Content]:
        """What a group held, and what it holds."""
        return (
            summed(self._old[name] for name in group.old),
            summed(self._new[name] for name in group.new),
        )

    def losses(self) -> list[str]:
        """A paragraph for each group that has fewer tests or assertions than before."""
        found = []
        for group in self.groups:
            before, now = self.counts(group)
            lostCount = before.tests.total() - now.tests.total()
            if lostCount > 0 or now.assertCount < before.assertCount:
                names = (
                    Counter(test.partition(".")[2] for test in content.tests.elements())
                    for content in (before, now)
                )
                earlier, later = names
                gone = sorted((earlier - later).elements())
                added = sorted((later - earlier).elements())
                found.append(
                    f"{', '.join(group.old)} -> {', '.join(group.new) or 'nothing'}: "
                    f"tests {before.tests.total()} -> {now.tests.total()}, "
                    f"asserts {before.assertCount} -> {now.assertCount}"
                    + "".join(f"\n    - {name}" for name in gone)
                    + "".join(f"\n    + {name}" for name in added)
                )
        return found

    def table(self, baseline: str) -> str:
        """
        The page to commit: a row for each group that had tests, the sum, and the reasons from the
        notes.
        """
        rows = []
        for group in self.groups:
            before, now = self.counts(group)
            if before.tests:
                rows.append((group, before, now))
        lines = [
            f"| {'<br>'.join(f'`{name}`' for name in group.old)} "
            f"| {'<br>'.join(f'`{name}`' for name in group.new if self._new[name].tests)} "
            f"| {before.tests.total()} → {now.tests.total()} "
            f"| {before.assertCount} → {now.assertCount} |"
            for group, before, now in rows
        ]
        lines.append(f"| **all** | | {self.total()} |")
        added = [
            f"`{name}` ({self._new[name].tests.total()})"
            for group in self.groups
            if not group.old
            for name in group.new
            if self._new[name].tests
        ]
        text = _HEAD.format(baseline=baseline) + "\n".join(lines) + "\n"
        if added:
            text += f"\nNew modules, with the number of their tests: {', '.join(added)}.\n"
        reasons = [line for line in self._notes.splitlines() if self._isReason(line)]
        if reasons:
            text += "\n## Notes\n\n" + "\n".join(f"- {line}" for line in reasons) + "\n"
        return text

    @staticmethod
    def _isReason(line: str) -> bool:
        """Whether a note says more than which module became which."""
        return bool(re.sub(r"[\s,>-]", "", _NAME.sub("", line)))

    def total(self) -> str:
        """Tests and assertions, before and now."""
        before, now = summed(self._old.values()), summed(self._new.values())
        return (
            f"{before.tests.total()} → {now.tests.total()} "
            f"| {before.assertCount} → {now.assertCount}"
        )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.testmodules",
        description="Where are the tests of an earlier commit now, and was one lost?",
    )
    parser.add_argument("--baseline", default=BASELINE, help="the earlier commit (%(default)s)")
    parser.add_argument("--notes", type=Path, help="a folder with .txt files")
    parser.add_argument("--output", type=Path, help="write the table there")
    options = parser.parse_args()
    files = sorted(options.notes.glob("*.txt")) if options.notes else []
    notes = "\n".join(file.read_text(encoding="utf-8") for file in files)
    comparison = Comparison(
        oldContents(options.baseline), newContents(), renames(options.baseline), notes
    )
    if options.output:
        options.output.write_text(comparison.table(options.baseline), encoding="utf-8")
    losses = comparison.losses()
    for loss in losses:
        tell(loss)
    tell(f"tests | asserts: {comparison.total()}")
    tell(f"{len(losses)} groups have fewer tests or assertions than before")
    raise SystemExit(1 if losses else 0)


if __name__ == "__main__":
    main()
