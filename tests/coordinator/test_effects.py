"""
Effects and deadlines.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.effects import STALE_COUNT_MAX, Appended, Deadlines, Effects
from pylogbroker.protocol.kafka.errorcodes import ErrorCode


class EffectsTests(SynchronousTestCase):
    """What a step asks for is done when the step is done."""

    def test_order(self) -> None:
        """Answers and appends are performed in order, and only when they are delivered."""
        seen: list[object] = []
        effects = Effects(
            lambda partition, records, done, producer=None: seen.append((partition, records))
        )
        effects.reply(seen.append, "first")
        effects.append(3, [(b"k", None)], lambda error: None)
        effects.reply(seen.append, "last")
        self.assertEqual(seen, [])
        effects.deliver()
        self.assertEqual(seen, ["first", (3, [(b"k", None)]), "last"])

    def test_notEnteredAgain(self) -> None:
        """What a callback asks for comes behind what was asked for before it."""
        seen: list[str] = []

        def first(answer: str) -> None:
            effects.reply(seen.append, "nested")
            effects.deliver()
            seen.append(answer)

        effects = Effects(lambda partition, records, done, producer=None: None)
        effects.reply(first, "first")
        effects.reply(seen.append, "second")
        effects.deliver()
        self.assertEqual(seen, ["first", "second", "nested"])

    def test_failingCallback(self) -> None:
        """A callback that fails does not keep the others from being delivered the next time."""
        seen: list[str] = []
        effects = Effects(lambda partition, records, done, producer=None: None)
        effects.reply(lambda answer: 1 / 0, "bad")
        effects.reply(seen.append, "good")
        self.assertRaises(ZeroDivisionError, effects.deliver)
        effects.deliver()
        self.assertEqual(seen, ["good"])

    def test_outcome(self) -> None:
        """All who wait for an append are told its outcome, in order, and what they ask is done."""
        done: list[Appended] = []
        seen: list[object] = []
        effects = Effects(lambda partition, records, appended, producer=None: done.append(appended))
        pending = effects.append(0, [], lambda error: effects.reply(seen.append, error))
        pending.then(lambda error: effects.reply(seen.append, "then"))
        effects.deliver()
        self.assertFalse(pending.isDone)
        done[0](ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertTrue(pending.isDone)
        self.assertEqual(seen, [ErrorCode.KAFKA_STORAGE_ERROR, "then"])


class DeadlinesTests(SynchronousTestCase):
    """What is due when."""

    def test_model(self) -> None:
        """Whatever is set, put off and cancelled: what is due is what a plain table says."""
        random = Random(5)
        for _ in range(200):
            deadlines, model = Deadlines(), dict[int, int]()
            nowMs = 0
            for _ in range(60):
                key = random.randrange(8)
                step = random.random()
                if step < 0.6:
                    model[key] = nowMs + random.randrange(20)
                    deadlines.set(key, model[key], lambda key=key: key)  # type: ignore[misc]
                elif step < 0.8:
                    model.pop(key, None)
                    deadlines.cancel(key)
                else:
                    nowMs += random.randrange(10)
                    due = set()
                    while (callback := deadlines.takeDue(nowMs)) is not None:
                        due.add(callback())
                    self.assertEqual(due, {key for key, ms in model.items() if ms <= nowMs})
                    model = {key: ms for key, ms in model.items() if ms > nowMs}
                self.assertEqual(len(deadlines), len(model))
                self.assertEqual({key for key in range(8) if key in deadlines}, model.keys())
                nextMs = deadlines.nextMs()
                if model:
                    self.assertTrue(nextMs is not None and nextMs <= min(model.values()))

    def test_putOff(self) -> None:
        """The heartbeats of a member leave one entry in the queue."""
        deadlines = Deadlines()
        for ms in range(1_000):
            deadlines.set("a", ms, lambda: None)
        self.assertEqual(len(deadlines._queue), 1)

    def test_cancelled(self) -> None:
        """Deadlines that are set and cancelled over and over do not fill the queue."""
        deadlines = Deadlines()
        for ms in range(10_000):
            deadlines.set("a", ms, lambda: None)
            deadlines.cancel("a")
        self.assertTrue(len(deadlines._queue) <= STALE_COUNT_MAX + 4)
        self.assertIs(deadlines.takeDue(20_000), None)
        self.assertIs(deadlines.nextMs(), None)
