"""
The L{Deferred} of one message.

Whoever sends message by message mostly hangs one and the same errback on each, and nothing else: to be told of what goes wrong. A L{Deferred} keeps three
tuples for that, and when all went well it walks through its loop to find that nothing is to be called. With hundreds of thousands a second both matter, the
tuples less for what they cost to make than because Python's garbage collector looks at all that lives while a batch collects.

So a L{SendDeferred} shares the tuples of an errback that comes again and again (L{SameErrback}), and when it succeeds and nothing but such an errback waits, it
has nothing to call and does not look. In all else it I{is} a L{Deferred}: whatever else is added, asked or done goes through Twisted's own code.

It knows how a L{Deferred} keeps what was added to it, which Twisted does not promise. Whether that is as it thinks is tried out when a producer is made;
where it is not (before Twisted 25.5, and whenever that changes), and where Twisted's debugging is on, L{sendings} makes plain ones, which do the same and cost
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.defer import Deferred

_NO_KEYWORDS: dict[str, Any] = {}


def _passed(result: Any) -> Any:
    """What stands beside an errback for the good case."""
    return result


class SameErrback:
    """
    The errback that was added last, by all who send with one producer.

    @ivar errback: itself; compared, since a method is a new object each time that it is asked for.
    @ivar entry: what a L{Deferred} keeps of it.
    """

    __slots__ = ("entry", "errback")

    def __init__(self) -> None:
        self.errback: Any = None
        self.entry: Any = None

    def entryOf(self, errback: Any) -> Any:
        """What a L{Deferred} is to keep; the same as before for the same errback."""
        if not _isSameMethod(self.errback, errback):
            self.entry = ((_passed, (), _NO_KEYWORDS), (errback, (), _NO_KEYWORDS))
        self.errback = errback
        return self.entry


_METHOD = type(SameErrback().entryOf)


def _isSameMethod(one: Any, other: Any) -> bool:
    return type(one) is type(other) is _METHOD and one == other


class _Light(Deferred[None]):
    """
    A L{Deferred} in all that can be seen, which has no list of callbacks before Twisted's own code asks for it. What a L{Deferred} sets when it is made is as
    the class has it, which saves a call for each.

    @ivar _state: empty, or the one entry that was added; L{None} once it is Twisted's own code that knows what is to be called.
    """

    __init__ = object.__init__
    _canceller = None
    _state: Any = ()
    _added: list[Any] | None = None

    @property
    def _callbacks(self) -> list[Any]:  # type: ignore[override] # an attribute in Twisted
        added = self._added
        if added is None:
            added = self._added = [self._state] if self._state else []
            self._state = None
        return added

    def pause(self) -> None:
        """Twisted's."""
        assert self._callbacks is not None  # from here on it is Twisted's
        super().pause()


class SendDeferred(_Light):
    """
    Fires when a message has gone.
    """

    _same: SameErrback
    """Shared by all of one producer, whose class has it (L{sendings})."""

    def addErrback(self, errback: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Twisted's."""
        if self._state == () and not args and not kwargs:
            same = self._same
            self._state = same.entry if same.errback is errback else same.entryOf(errback)
            return self
        return super().addErrback(errback, *args, **kwargs)

    def callback(self, result: Any) -> None:
        """Twisted's."""
        if self._state is None or result is not None:
            super().callback(result)
            return
        self._state = None
        self.called = True
        self.result = None


class Done(_Light):
    """
    Has fired, with nothing to say: the same as C{succeed(None)} for less, for a loop that asks before each message.
    """

    called = True
    result: Any = None

    def __await__(self) -> Any:
        """Twisted's."""
        return super().__await__() if self._state is None else _END


_END: Iterator[Any] = iter(())
"""Of a coroutine's waiting, at once."""


def _isKnown(deferredClass: Any) -> bool:
    """Whether a L{Deferred} keeps what is added as L{SendDeferred} thinks."""
    probe = deferredClass()
    probe.addErrback(_passed, 1, two=2)
    try:
        ((good, bad),) = probe._callbacks
        return vars(probe) == {"_callbacks": [(good, bad)], "_canceller": None} and bool(
            bad == (_passed, (1,), {"two": 2})
        )
    except (AttributeError, TypeError, ValueError):
        return False


def sendings(deferredClass: Any = Deferred) -> Callable[[], Deferred[None]]:
    """
    @param deferredClass: Twisted's.
    @return: makes one for each message of one producer.
    """
    if Deferred.debug or not _isKnown(deferredClass):
        return Deferred
    return type("SendDeferred", (SendDeferred,), {"_same": SameErrback()})
