"""
Startup, graceful shutdown and upstream flow control of a producer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.discovery import IDiscovery, StaticDiscovery, ZookeeperDiscovery
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import PylogbrokerError, TimedOutError, copyForReraise
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer

PAUSE_FULLNESS, RESUME_FULLNESS = 3 / 4, 1 / 4
"""
Parts of the queue's capacity: a Twisted push producer is paused at one and resumed at the other.
"""

log = Logger()


class DiscoveryStartup:
    """
    Starts a producer's discovery once, for all callers. A failed start can be tried again.
    C{broker.list} is known at once.

    @ivar discovery: L{None} before it is made.
    @ivar refusal: why L{start} fails from now on.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        onStarted: Callable[[IDiscovery], None],
        random: Callable[[], float],
        zookeeper: IZookeeper | None = None,
        discovery: IDiscovery | None = None,
    ) -> None:
        """
        @param onStarted: called with the discovery; at once for C{broker.list}.
        @param random: numbers from 0 up to, not including, 1.
        @param zookeeper: a connected client, which its owner closes, in place of C{zk.connect}.
        @param discovery: in place of the one from the settings.
        """
        if discovery is None and settings.brokerList:
            discovery = StaticDiscovery(settings.brokerList)
        self.discovery = discovery
        self.refusal: PylogbrokerError | None = None
        self._isStarting = self._isStarted = False
        self._reactor = reactor
        self._settings = settings
        self._onStarted = onStarted
        self._random = random
        self._zookeeper = zookeeper
        self._ownZookeeper: Any = None
        self._starting: Deferred[None] | None = None
        self._waiters: Waiters[None] = Waiters()
        if discovery is not None and discovery.isStatic:
            onStarted(discovery)
            self._isStarted = True

    def start(self) -> Deferred[None]:
        """
        @return: fires when the discovery has started. Fails with
            L{pylogbroker.errors.ZookeeperError}, or with C{refusal}.
        """
        if self._isStarted:
            return succeed(None)
        if not self._isStarting and self.refusal is not None:
            return fail(copyForReraise(self.refusal))
        waiter = self._waiters.wait()
        if not self._isStarting:
            self._isStarting = True  # at once: the application's discovery may use the producer
            self._starting = Deferred.fromCoroutine(self._start())
            self._starting.addBoth(self._ended)
        return waiter

    async def _start(self) -> None:
        discovery = self.discovery
        try:
            if discovery is None:
                discovery = ZookeeperDiscovery(
                    self._reactor,
                    self._zookeeper or await self._connect(),
                    readRetryCount=self._settings.zkReadNumRetries,
                    random=self._random,
                )
            await discovery.start()
        except Exception:
            await self.close()
            raise
        self.discovery = discovery
        self._onStarted(discovery)

    async def _connect(self) -> IZookeeper:
        # kazoo is imported only where ZooKeeper is used
        from pylogbroker.zookeeper.client import ZookeeperClient

        settings = self._settings
        client = ZookeeperClient.fromSettings(self._reactor, settings)
        await client.connect(settings.zkConnectionTimeoutMs)
        self._ownZookeeper = client
        return client

    def _ended(self, result: Any) -> None:
        self._isStarting = False
        self._isStarted = not isinstance(result, Failure)
        self._waiters.fire(result)

    def cancel(self) -> None:
        if self._isStarting and self._starting is not None:
            self._starting.cancel()

    def stop(self) -> None:
        if self.discovery is not None:
            self.discovery.stop()

    async def close(self) -> None:
        own, self._ownZookeeper = self._ownZookeeper, None
        if own is not None:
            await own.close()


class GracefulShutdown:
    """
    Closes a producer once, for all callers, within a time limit, and on request before the reactor
    stops.

    What must be true: it ends at the time limit. So each wait in it must end by C{abort}, or use
    L{awaitOrAbort}.

    @ivar isAborted: whether the time was over before everything was sent.
    @ivar timeoutMs: for all of it, in milliseconds.
    """

    def __init__(
        self,
        reactor: Any,
        timeoutMs: float,
        begin: Callable[[], None],
        close: Callable[[], Coroutine[Any, Any, None]],
        abort: Callable[[TimedOutError], None],
        describeLosses: Callable[[], str],
    ) -> None:
        """
        @param timeoutMs: by default, for all of it.
        @param begin: called first: refuses messages from then on.
        @param abort: called at the time limit; must end all waits of C{close}.
        @param describeLosses: says what was lost, for the error.
        """
        self.isAborted = False
        self._reactor = reactor
        self.timeoutMs = timeoutMs
        self._begin = begin
        self._close = close
        self._abort = abort
        self._describeLosses = describeLosses
        self._waiters: Waiters[None] = Waiters()
        self._awaited: Deferred[None] | None = None
        self._hasBegun = self._isDone = False
        self._trigger: Any = None

    def beforeStop(self) -> None:
        if self._trigger is None and not self._hasBegun:
            self._trigger = self._reactor.addSystemEventTrigger(
                "before", "shutdown", self._closeAtStop
            )

    def _closeAtStop(self) -> Deferred[None]:
        self._trigger = None
        return self.close().addErrback(
            lambda failure: log.error("Closing the producer: {error}", error=failure.value)
        )

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        @param timeoutMs: for all of it; ignored if closing has begun.
        @return: fires when the producer is closed. Fails with L{TimedOutError} when it was cut
            short, or as C{close} failed. A call after the end succeeds.
        """
        if self._isDone:
            return succeed(None)
        waiter = self._waiters.wait()
        if self._hasBegun:
            return waiter
        self._hasBegun = True
        if self._trigger is not None:
            trigger, self._trigger = self._trigger, None
            self._reactor.removeSystemEventTrigger(trigger)
        if timeoutMs is not None:
            self.timeoutMs = timeoutMs
        self._begin()
        timer = Timer(self._reactor)
        timer.start(self.timeoutMs, self._onTimeout)
        Deferred.fromCoroutine(self._close()).addBoth(self._closed, timer)
        return waiter

    def _onTimeout(self) -> None:
        self.isAborted = True
        text = f"the producer could not be closed within {self.timeoutMs:g} ms"
        self._abort(TimedOutError(text))
        if self._awaited is not None:
            self._awaited.cancel()

    async def awaitOrAbort(self, work: Deferred[None]) -> None:
        """Wait for a Deferred in C{close}. At the time limit it is cancelled and abandoned."""
        if self.isAborted:
            work.cancel()
        self._awaited = work
        try:
            await work
        except CancelledError:
            pass  # the time is over; nothing else cancels it
        finally:
            self._awaited = None

    def _closed(self, result: Any, timer: Timer) -> None:
        timer.stop()
        if self.isAborted:
            text = f"it took too long to close the producer: {self._describeLosses()}"
            result = Failure(TimedOutError(text))
        self._isDone = True
        self._waiters.fire(result)


class UpstreamFlowControl:
    """Pauses and resumes the Twisted producer that writes to this one."""

    def __init__(self, clock: IReactorTime, fullness: Callable[[], float]) -> None:
        """
        @param clock: a pull producer is asked for more in the next turn of the reactor.
        @param fullness: the part of the queue's capacity in use; may exceed 1.
        """
        self.isPaused = False
        self._clock = clock
        self._fullness = fullness
        self._upstream: Any = None
        self._isPushing = False
        self._hasEnded = False

    def register(self, upstream: Any, isPushing: bool) -> None:
        """
        Control a Twisted producer, or stop it after L{end}.

        @raise RuntimeError: another one is registered.
        """
        if self._upstream is not None:
            raise RuntimeError(f"{self._upstream!r} is registered already")
        self._upstream = upstream
        self._isPushing = isPushing
        self.isPaused = False
        if self._hasEnded:
            upstream.stopProducing()
        elif not isPushing:
            self.isPaused = True
            self.check()

    def unregister(self) -> None:
        self._upstream = None
        self.isPaused = False

    def onWrite(self) -> None:
        if self._upstream is None:
            return
        if not self._isPushing:
            self.isPaused = True
            self._clock.callLater(0, self.check)
        elif not self.isPaused and self._fullness() >= PAUSE_FULLNESS:
            self.isPaused = True
            self._upstream.pauseProducing()

    def check(self) -> None:
        if self._upstream is None or not self.isPaused or self._hasEnded:
            return
        if self._fullness() <= (RESUME_FULLNESS if self._isPushing else PAUSE_FULLNESS):
            self.isPaused = False
            self._upstream.resumeProducing()

    def end(self) -> None:
        self._hasEnded = True
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            upstream.stopProducing()
