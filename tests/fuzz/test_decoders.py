"""
The promises of the decoders, asked for with seeded bytes: mutations of what real clients and
brokers sent. The long form is L{tests.fuzz.atheris_decoders}.
"""

from __future__ import annotations

from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz import golden, judge
from tests.fuzz.mutation import Mutator
from tests.fuzz.promises import PROMISES, demand

SEED = 20110612
COUNT = 4000


class PromiseTests(SynchronousTestCase):
    """Whatever the bytes, the promises hold."""

    def promise(self, name: str) -> None:
        """All samples of a promise as they are, then so many mutations of them."""
        samples = golden.samples(name)
        mutator = Mutator(SEED + crc32(name.encode("ascii")), samples)
        inputs = [
            *samples,
            b"",
            *(mutator.garble(samples[number % len(samples)]) for number in range(COUNT)),
        ]
        for data in inputs:
            try:
                PROMISES[name](data)
            except Exception as error:
                self.fail(f"{name}, seed {SEED}: {error!r} for {data.hex()}")

    def test_requestStream(self) -> None:
        """
        However a stream of frames is cut up, and whenever it is asked, the decoder gives what
        slicing gives.
        """
        self.promise("requestStream")

    def test_requestBody(self) -> None:
        """A request is a WireError, or what it is encoded to again."""
        self.promise("requestBody")

    def test_responseBody(self) -> None:
        """A response is a WireError for each reader of it, or what it is encoded to again."""
        self.promise("responseBody")

    def test_messageSet(self) -> None:
        """Every reading of a message set agrees with an independent one."""
        self.promise("messageSet")

    def test_wrapped(self) -> None:
        """The same with foreign bytes as a compressed payload whose checksum is right."""
        self.promise("wrapped")

    def test_nested(self) -> None:
        """The same for sets in up to five wrappers."""
        self.promise("nested")

    def test_compression(self) -> None:
        """
        A decompressor gives what an independent one gives, within its limit, or one of its two
        errors.
        """
        self.promise("compression")

    def test_scan(self) -> None:
        """
        A walk over a segment finds what an independent reading would recover, and never raises.
        """
        self.promise("scan")

    def test_plainSet(self) -> None:
        """What an application sends comes back, in every packing."""
        self.promise("plainSet")

    def test_kafkaRequest(self) -> None:
        """A request of today's protocol is a WireError, or comes back from its encoding."""
        self.promise("kafkaRequest")

    def test_kafkaResponse(self) -> None:
        """A response of today's protocol is a WireError, or comes back from its encoding."""
        self.promise("kafkaResponse")

    def test_kafkaBatch(self) -> None:
        """A batch is refused, or has the records that its header says; all checks agree."""
        self.promise("kafkaBatch")

    def test_topologyFrame(self) -> None:
        """
        A frame of a topology is a WireError, or comes back from its encoding, and a batch is routed
        whole.
        """
        self.promise("topologyFrame")

    def test_everyPromiseIsAskedFor(self) -> None:
        """Each promise has its test here."""
        self.assertEqual([name for name in PROMISES if not hasattr(self, f"test_{name}")], [])


class MutatorTests(SynchronousTestCase):
    """Mutations are the same for the same seed, and reach deep."""

    def test_sameSeedSameMutations(self) -> None:
        """Two mutators with one seed give the same bytes, one with another seed gives others."""
        first, second, third = Mutator(5), Mutator(5), Mutator(6)
        mutations = [first.next() for _ in range(300)]
        self.assertEqual([second.next() for _ in range(300)], mutations)
        self.assertNotEqual([third.next() for _ in range(300)], mutations)

    def test_mutationsReachDeep(self) -> None:
        """
        Among the mutations of a message set with a wrapper are many with right checksums outside,
        and both good and bad messages inside.
        """
        wrapper = next(
            data
            for data in golden.messageSets()
            if any(entry.codec for entry in judge.recoverable(data))
        )
        mutator = Mutator(SEED)
        good = bad = 0
        for _ in range(200):
            data = mutator.insideSet(wrapper)
            try:
                found = judge.count(data, 1 << 20, 1 << 20, 8)
            except judge.RefusedError:
                bad += 1
            else:
                good += found is not None
        self.assertGreater(good, 20)
        self.assertGreater(bad, 20)


class DemandTests(SynchronousTestCase):
    """The promises can be broken."""

    def test_demandRaises(self) -> None:
        """What does not hold is an AssertionError that says what."""
        demand(True, "fine")
        self.assertEqual(
            self.assertRaises(AssertionError, demand, False, "this", 5).args, ("this", 5)
        )
