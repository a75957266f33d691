"""
The routes of the console: the page's files and its API.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool

from pylogbroker import __version__
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.peek import COUNT_MAX, Work, peek, peekLast
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.httpserver import BadRequestError, HttpResponse, Query, Route, jsonReply

PAGE = Path(__file__).with_name("page")
FILES = (
    ("/", "console.html", "text/html; charset=utf-8"),
    ("/console.css", "console.css", "text/css; charset=utf-8"),
    ("/console.js", "console.js", "text/javascript; charset=utf-8"),
    ("/chart.js", "chart.js", "text/javascript; charset=utf-8"),
    ("/icon.svg", "icon.svg", "image/svg+xml"),
)
_OFFSET_MAX = 2**63 - 1


def pageRoutes(reactor: Any, view: ClusterView, hasMessages: bool) -> dict[str, Route]:
    """
    @param reactor: its threads decode messages, one request after the other.
    @param hasMessages: whether the console may show messages.
    """
    routes = {path: _file(name, kind) for path, name, kind in FILES}
    routes["/api/state"] = lambda query: Deferred.fromCoroutine(_state(view, hasMessages))
    routes["/api/groups"] = lambda query: Deferred.fromCoroutine(_groups(view))
    if hasMessages:
        turn = DeferredLock()

        def work(decode: Callable[[], Any]) -> Deferred[Any]:
            return turn.run(lambda: deferToThreadPool(reactor, reactor.getThreadPool(), decode))

        routes["/api/messages"] = lambda query: Deferred.fromCoroutine(_messages(view, query, work))
    return routes


def _file(name: str, kind: str) -> Route:
    reply = HttpResponse(200, kind, (PAGE / name).read_bytes())
    return lambda query: reply


async def _state(view: ClusterView, hasMessages: bool) -> HttpResponse:
    return jsonReply({**await view.state(), "version": __version__, "hasMessages": hasMessages})


async def _groups(view: ClusterView) -> HttpResponse:
    return jsonReply(await view.groups())


async def _messages(view: ClusterView, query: Query, work: Work) -> HttpResponse:
    topic = query.get("topic", "")
    broker, partition = _number(query, "broker", 2**31 - 1), _number(query, "partition", 2**31 - 1)
    count = max(1, min(_number(query, "count", COUNT_MAX, 20), COUNT_MAX))
    try:
        source = await view.source(broker)
        if query.get("offset", "last") == "last":
            found = await peekLast(source, topic, partition, count, work)
        else:
            found = await peek(
                source, topic, partition, _number(query, "offset", _OFFSET_MAX), count, work
            )
        start, end = await source.bounds(topic, partition)
    except PylogbrokerError as error:
        raise BadRequestError(str(error) or type(error).__name__) from error
    answer: dict[str, Any] = {**found._asdict(), "start": start, "end": end}
    return jsonReply(answer)


def _number(query: Query, name: str, most: int, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise BadRequestError(f"{name} must be a number from 0 to {most}")
    return int(text)
