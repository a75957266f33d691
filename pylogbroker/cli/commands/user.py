"""
C{user}: users of SCRAM and their passwords (Kafka's C{kafka-configs.sh --entity-type users}; with
C{--log-dir}, C{kafka-storage.sh format --add-scram}).

What must be true: a password stands in no argument, which other users of the machine could see, and
leaves this process only salted and hashed.

With C{--bootstrap-server} the broker changes its metadata. With C{--log-dir} the command does it
itself, in the directory of a broker that does not run, and perhaps never has: so a cluster that
requires passwords has a first user. Both ways take the same request.
"""

from __future__ import annotations

import os
import secrets
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from getpass import getpass
from typing import Any

from twisted.internet.defer import execute

from pylogbroker.broker.kafka.security.mechanisms import (
    ITERATIONS_MAX,
    SCRAM_MECHANISMS,
    ScramMechanism,
)
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    ACCESS,
    BOOTSTRAP,
    JSON,
    Argument,
    Command,
    either,
    intRange,
    option,
    positive,
)
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import StorageError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import checkCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.kafka.checkpoints import META_PROPERTIES
from pylogbroker.storage.logdirectory import APACHE_METADATA, LOCK_NAME
from pylogbroker.storage.metadatastore import JOURNAL_NAME, MetadataStore

PASSWORD_SIZE_MAX = 1024
_SALT_SIZE = 24
_ITERATIONS = 4096
_MECHANISMS = {each.name: each for each in SCRAM_MECHANISMS.values()}

Request = Callable[[ApiKey, Any], Any]


class _SynchronousWorker:
    """Runs what a broker gives to worker threads."""

    def submit(self, work: Callable[[], Any]) -> Any:
        return execute(work)

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


@contextmanager
def _metadata(options: Namespace, streams: Streams) -> Iterator[Request]:
    """A function that carries out a request: by a broker, or in its directory."""
    if options.logDir is None:
        with openCluster(options, streams) as cluster:
            yield (
                lambda key, body: (
                    cluster.change(key, body)
                    if key is ApiKey.ALTER_USER_SCRAM_CREDENTIALS
                    else cluster.ask(key, body)
                )
            )
        return
    # Other commands need nothing of a broker.
    from pylogbroker.broker.kafka.protocol import ConnectionState
    from pylogbroker.broker.kafka.security.credentialrequests import CredentialRequests
    from pylogbroker.broker.metadata.journal import MetadataJournal
    from pylogbroker.broker.metadatamanager import MetadataManager

    path, fileSystem = os.path.abspath(options.logDir), RealFileSystem()
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise StorageError(path, "create", error.strerror or "") from error
    unlock = fileSystem.lock(f"{path}/{LOCK_NAME}")
    try:
        hasJournal = fileSystem.status(f"{path}/{JOURNAL_NAME}") is not None
        if not hasJournal and fileSystem.status(f"{path}/{APACHE_METADATA}") is not None:
            raise CommandError(f"{path} is Apache Kafka's: start the broker on it once before")
        if not hasJournal and fileSystem.status(f"{path}/{META_PROPERTIES}") is not None:
            raise CommandError(
                f"{path} has no {JOURNAL_NAME}: the metadata of its broker are in ZooKeeper, and "
                "need --bootstrap-server"
            )
        journal = MetadataJournal(MetadataStore(fileSystem, path), _SynchronousWorker())
        with closing(MetadataManager(journal, secrets.token_bytes)) as metadata:
            journal.open(metadata)
            handlers = CredentialRequests(metadata).handlers

            def request(key: ApiKey, body: Any) -> Any:
                outcomes: list[Any] = []
                header = RequestHeader(key, 0, 0, None)
                answer = handlers[key](header, body, ConnectionState(None))
                if not hasattr(answer, "addBoth"):
                    return answer
                answer.addBoth(outcomes.append)
                return outcomes[0]

            yield request
    finally:
        unlock()


def _mechanism(text: str) -> ScramMechanism:
    """The type of a mechanism."""
    if text not in _MECHANISMS:
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(_MECHANISMS)}")
    return _MECHANISMS[text]


def _password(streams: Streams) -> str:
    """
    The first line of the input; at a terminal it is asked for twice.

    @raise CommandError: there is none, or it is too long.
    """
    if os.isatty(streams.input):
        password = getpass("Password: ")
        if getpass("Again: ") != password:
            raise CommandError("the passwords are not the same")
    else:
        data = b""
        while b"\n" not in data and len(data) <= PASSWORD_SIZE_MAX:
            more = os.read(streams.input, PASSWORD_SIZE_MAX)
            if not more:
                break
            data += more
        password = data.partition(b"\n")[0].decode("utf-8", "surrogateescape").rstrip("\r")
    if not password:
        raise CommandError("there is no password on standard input")
    try:
        size = len(password.encode())
    except UnicodeError:
        raise CommandError("the password is not UTF-8") from None
    if size > PASSWORD_SIZE_MAX:
        raise CommandError(f"the password has more than {PASSWORD_SIZE_MAX} bytes")
    return password


def _chosen(options: Namespace) -> list[ScramMechanism]:
    return [options.mechanism] if options.mechanism else list(_MECHANISMS.values())


def _change(request: Request, body: Any) -> None:
    """@raise ResponseError: it was refused."""
    [result] = request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
    checkCode(result.errorCode, f"user {result.user}", result.errorMessage)


def addUser(options: Namespace, streams: Streams) -> int:
    """Give a user a password, for each mechanism by itself, since a request may name it once."""
    password = _password(streams)
    cls = messages.AlterUserScramCredentialsRequest
    with _metadata(options, streams) as request:
        for mechanism in _chosen(options):
            salt = secrets.token_bytes(_SALT_SIZE)
            salted = mechanism.saltedPassword(password, salt, options.iterations)
            made = cls.ScramCredentialUpsertion(
                name=options.user,
                mechanism=mechanism.number,
                iterations=options.iterations,
                salt=salt,
                saltedPassword=salted,
            )
            _change(request, cls(upsertions=[made]))
    streams.say(f"user {options.user} has a password")
    return 0


def removeUser(options: Namespace, streams: Streams) -> int:
    """
    Take a user's passwords away.

    @raise CommandError: there are none.
    """
    cls = messages.AlterUserScramCredentialsRequest
    chosen = {each.number for each in _chosen(options)}
    with _metadata(options, streams) as request:
        found = chosen & {number for _, number, _ in _users(request, options.user)}
        if not found:
            raise CommandError(f"user {options.user} has no such password")
        for number in sorted(found):
            gone = cls.ScramCredentialDeletion(name=options.user, mechanism=number)
            _change(request, cls(deletions=[gone]))
    streams.say(f"user {options.user} has no password any more")
    return 0


def _users(request: Request, name: str | None = None) -> list[tuple[str, int, int]]:
    """User, mechanism and iterations of each password."""
    body = messages.DescribeUserScramCredentialsRequest(users=None)
    answer = request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, body)
    checkCode(answer.errorCode, "users", answer.errorMessage)
    return sorted(
        (each.user, info.mechanism, info.iterations)
        for each in answer.results
        for info in each.credentialInfos
        if name in (None, each.user)
    )


def listUsers(options: Namespace, streams: Streams) -> int:
    """Print a line for each user and mechanism."""
    with _metadata(options, streams) as request:
        found = _users(request)
    rows = [
        (user, SCRAM_MECHANISMS[number].name if number in SCRAM_MECHANISMS else number, iterations)
        for user, number, iterations in found
    ]
    if options.json:
        keys = ("user", "mechanism", "iterations")
        show(streams, asJson({"users": [dict(zip(keys, row, strict=True)) for row in rows]}))
        return 0
    if not rows:
        streams.say("there are no users")
    show(streams, tableOfRows(("USER", "MECHANISM", "ITERATIONS"), rows))
    return 0


_PLACE: tuple[Argument, ...] = (
    either(
        BOOTSTRAP,
        option("--log-dir DIR", "the log directory of a broker that does not run", dest="logDir"),
        isRequired=True,
    ),
    option(
        "--timeout-ms MS",
        "time-out for connecting and for each answer (%(default)s)",
        positive,
        30_000,
    ),
    *ACCESS,
)
_USER = option("user", "the user's name")
_MECHANISM = option(
    f"--mechanism {'|'.join(_MECHANISMS)}",
    "one mechanism only; by default both",
    _mechanism,
)

COMMANDS = (
    Command(
        "user list",
        listUsers,
        (*_PLACE, JSON),
        """\
examples:
  pylogbroker user list --bootstrap-server log1:9092
  pylogbroker user list --log-dir ./kafka-logs --json

The users of SASL PLAIN stand in the broker's property file.
""",
        isBlocking=True,
    ),
    Command(
        "user add",
        addUser,
        (
            _USER,
            *_PLACE,
            _MECHANISM,
            option(
                "--iterations N",
                "how often a client hashes the password (%(default)s)",
                intRange(_ITERATIONS, ITERATIONS_MAX),
                _ITERATIONS,
            ),
        ),
        """\
examples:
  echo alice-secret | pylogbroker user add alice --bootstrap-server log1:9092
  echo admin-secret | pylogbroker user add admin --log-dir ./kafka-logs --mechanism SCRAM-SHA-512

The password is the first line of standard input; a terminal asks for it. With --log-dir the broker
must not run; the directory need not be there yet.
""",
        isBlocking=True,
    ),
    Command(
        "user remove",
        removeUser,
        (_USER, *_PLACE, _MECHANISM),
        """\
examples:
  pylogbroker user remove alice --bootstrap-server log1:9092

Connections that the user has stay open.
""",
        isBlocking=True,
    ),
)
