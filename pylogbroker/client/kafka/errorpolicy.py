"""
What a client does about each error code: one table for connections, producers and consumers.

Whether the same request may succeed later stands in L{ErrorCode} itself (C{isRetriable}). Here is
what else follows from a code. A code that a later broker invents has no policy: it is not tried
again.
"""

from __future__ import annotations

from enum import Flag, auto

from pylogbroker.protocol.kafka.errorcodes import ErrorCode


class ErrorPolicy(Flag):
    """
    What follows from an error code.

    C{RETRY}: the same request may succeed later. C{REFRESH}: the metadata are not (or no more) what
    the broker knows. C{FIND_COORDINATOR}: another broker coordinates. C{UNCERTAIN}: the request may
    have been carried out. C{FATAL}: the producer cannot go on. C{OUT_OF_SEQUENCE}: the broker lacks
    the batch before, or knows nothing of the producer. C{RESET}: the position is not in the log.
    """

    NONE = 0
    RETRY = auto()
    REFRESH = auto()
    FIND_COORDINATOR = auto()
    UNCERTAIN = auto()
    FATAL = auto()
    OUT_OF_SEQUENCE = auto()
    RESET = auto()


_P, _E = ErrorPolicy, ErrorCode

_FOLLOWS = {
    _P.REFRESH: (
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.LEADER_NOT_AVAILABLE,
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.REPLICA_NOT_AVAILABLE,
        _E.NETWORK_EXCEPTION,
        _E.KAFKA_STORAGE_ERROR,
        _E.LISTENER_NOT_FOUND,
        _E.FENCED_LEADER_EPOCH,
        _E.UNKNOWN_LEADER_EPOCH,
        _E.NOT_CONTROLLER,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
        _E.PREFERRED_LEADER_NOT_AVAILABLE,
        _E.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        _E.OFFSET_NOT_AVAILABLE,
        _E.FETCH_SESSION_TOPIC_ID_ERROR,
    ),
    _P.FIND_COORDINATOR: (_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR),
    _P.UNCERTAIN: (
        _E.UNKNOWN_SERVER_ERROR,
        _E.REQUEST_TIMED_OUT,
        _E.NETWORK_EXCEPTION,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.KAFKA_STORAGE_ERROR,
    ),
    _P.FATAL: (
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.INVALID_PRODUCER_ID_MAPPING,
        _E.PRODUCER_FENCED,
        _E.INVALID_TXN_STATE,
        _E.UNSUPPORTED_VERSION,
    ),
    _P.OUT_OF_SEQUENCE: (
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _E.UNKNOWN_PRODUCER_ID,
        _E.INVALID_PRODUCER_EPOCH,
    ),
    _P.RESET: (_E.OFFSET_OUT_OF_RANGE,),
}


def _policyOf(code: ErrorCode) -> ErrorPolicy:
    found = _P.RETRY if code.isRetriable else _P.NONE
    for policy, codes in _FOLLOWS.items():
        if code in codes:
            found |= policy
    return found


_POLICIES = {int(code): _policyOf(code) for code in ErrorCode}


def policyOf(code: int) -> ErrorPolicy:
    """
    @param code: as on the wire.
    """
    return _POLICIES.get(code, ErrorPolicy.NONE)
