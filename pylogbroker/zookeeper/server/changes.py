"""
The rules that make a client's request a transaction, or refuse it: those of ZooKeeper, in the order
in which ZooKeeper checks them, so that a client gets the same error from both servers.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field

from pylogbroker.errors import PylogbrokerError
from pylogbroker.zookeeper.server.datatree import (
    CONTAINER_OWNER,
    SYSTEM_PATHS,
    DataTree,
    Node,
    parentOf,
)
from pylogbroker.zookeeper.server.jute import Acl
from pylogbroker.zookeeper.server.requests import (
    ANY_VERSION,
    CONTAINER_FLAGS,
    EPHEMERAL_FLAG,
    SEQUENCE_FLAG,
    AuthRequest,
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    KeeperCode,
    Request,
    SetAclRequest,
    SetDataRequest,
)
from pylogbroker.zookeeper.server.transactions import (
    Change,
    CreateNode,
    DeleteNode,
    SetAcl,
    SetData,
)

READ, WRITE, CREATE, DELETE, ADMINISTER = 1, 2, 4, 8, 16

IDENTITY_COUNT_MAX = 100
"""Of a connection."""

CREDENTIALS_SIZE_MAX = 4_096
ACLS_COUNT_MAX = 100
ACLS_SIZE_MAX = 10_000
"""Characters of the identities of a list. Each access to a node goes through its list."""

_FLAGS_MAX = CONTAINER_FLAGS
_TTL_FLAGS = (5, 6)
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class RefusedError(PylogbrokerError):
    """
    A request that cannot be carried out.

    @ivar code: the answer's error code.
    """

    def __init__(self, code: KeeperCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class Client:
    """
    The session of a client, and the identities that the client has shown.

    @ivar sessionId: the owner of the ephemeral nodes that the client creates.
    @ivar identities: scheme and identity.
    """

    sessionId: int
    identities: list[tuple[str, str]] = field(default_factory=list)

    def authenticate(self, request: AuthRequest, address: str) -> None:
        """
        Add what the credentials show.

        @param address: of the client.
        @raise RefusedError: the scheme is unknown, the credentials are larger than
            L{CREDENTIALS_SIZE_MAX}, or there are L{IDENTITY_COUNT_MAX} already.
        """
        if len(request.credentials) > CREDENTIALS_SIZE_MAX:
            raise RefusedError(
                KeeperCode.AUTH_FAILED, f"credentials of {len(request.credentials)} bytes"
            )
        if request.scheme == "digest":
            identity = ("digest", digestOf(request.credentials))
        elif request.scheme == "ip":
            identity = ("ip", address)
        else:
            raise RefusedError(
                KeeperCode.AUTH_FAILED, f"no authentication by the scheme {request.scheme!r}"
            )
        if identity not in self.identities:
            if len(self.identities) >= IDENTITY_COUNT_MAX:
                raise RefusedError(
                    KeeperCode.AUTH_FAILED, f"a client has at most {IDENTITY_COUNT_MAX} identities"
                )
            self.identities.append(identity)


def digestOf(credentials: bytes) -> str:
    """The identity of C{user:password} in an access control list."""
    user = credentials.partition(b":")[0].decode("utf-8", "replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(credentials).digest()).decode()}"


def requireAccess(node: Node, path: str, permissions: int, client: Client) -> None:
    """@raise RefusedError: the node's list gives the client none of these permissions."""
    if node.acls and not any(
        each.permissions & permissions and _matches(each, client) for each in node.acls
    ):
        raise RefusedError(KeeperCode.NO_AUTH, f"{path}: the client may not do this")


def _matches(acl: Acl, client: Client) -> bool:
    if (acl.scheme, acl.identity) in (("world", "anyone"), *client.identities):
        return True
    return acl.scheme == "ip" and any(
        scheme == "ip" and _isIn(identity, acl.identity) for scheme, identity in client.identities
    )


def _isIn(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def requireValidPath(path: str) -> None:
    """@raise RefusedError: it is no path of a node."""
    if not path.startswith("/"):
        reason = "it must begin with /"
    elif path != "/" and path.endswith("/"):
        reason = "it must not end with /"
    elif path != "/" and any(name in ("", ".", "..") for name in path[1:].split("/")):
        reason = "it has an empty or relative name"
    elif _FORBIDDEN.search(path):
        reason = "it has a character that is not allowed"
    else:
        return
    raise RefusedError(KeeperCode.BAD_ARGUMENTS, f"the path {path!r}: {reason}")


def requireNode(tree: DataTree, path: str) -> Node:
    """@raise RefusedError: it is not there."""
    node = tree.nodes.get(path)
    if node is None:
        raise RefusedError(KeeperCode.NO_NODE, f"{path}: there is no such node")
    return node


def _requireVersion(path: str, wanted: int, found: int) -> None:
    if wanted not in (ANY_VERSION, found):
        raise RefusedError(KeeperCode.BAD_VERSION, f"{path}: its version is {found}, not {wanted}")


def _validAcls(path: str, acls: tuple[Acl, ...], client: Client) -> tuple[Acl, ...]:
    """The list with the client's own identities for C{auth}, without doubles."""
    _requireShort(path, acls)
    found: dict[Acl, None] = {}
    for each in acls:
        if each.scheme == "auth":
            mine = [own for own in client.identities if own[0] == "digest"]
            found.update((Acl(each.permissions, *own), None) for own in mine)
            isValid = bool(mine)
        else:
            isValid = _isValid(each)
            found[each] = None
        if not isValid:
            raise RefusedError(KeeperCode.INVALID_ACL, f"{path}: {each} is no valid entry")
    if not found:
        raise RefusedError(KeeperCode.INVALID_ACL, f"{path}: an empty access control list")
    _requireShort(path, tuple(found))
    return tuple(found)


def _requireShort(path: str, acls: tuple[Acl, ...]) -> None:
    size = sum(len(each.identity) for each in acls)
    if len(acls) > ACLS_COUNT_MAX or size > ACLS_SIZE_MAX:
        raise RefusedError(
            KeeperCode.INVALID_ACL,
            f"{path}: an access control list of {len(acls)} entries and {size} characters;"
            f" {ACLS_COUNT_MAX} and {ACLS_SIZE_MAX} are possible",
        )


def _isValid(acl: Acl) -> bool:
    if acl.scheme == "world":
        return acl.identity == "anyone"
    if acl.scheme == "digest":
        return len(acl.identity.split(":")) == 2
    if acl.scheme == "ip":
        try:
            ipaddress.ip_network(acl.identity, strict=False)
        except ValueError:
            return False
        return True
    return False


def prepare(tree: DataTree, request: Request, client: Client, sizeMax: int) -> Change | None:
    """
    The change that a request asks for.

    @param sizeMax: bytes of memory that the tree may take.
    @return: L{None}: nothing is to be changed, since the request only checks a version.
    @raise RefusedError: it is not possible.
    """
    if isinstance(request, CreateRequest):
        return _create(tree, request, client, sizeMax)
    if isinstance(request, DeleteRequest):
        return _delete(tree, request, client)
    if isinstance(request, SetDataRequest):
        return _setData(tree, request, client, sizeMax)
    if isinstance(request, SetAclRequest):
        return _setAcl(tree, request, client, sizeMax)
    assert isinstance(request, CheckRequest)
    requireValidPath(request.path)
    node = requireNode(tree, request.path)
    requireAccess(node, request.path, READ, client)
    _requireVersion(request.path, request.version, node.version)
    return None


def _create(tree: DataTree, request: CreateRequest, client: Client, sizeMax: int) -> CreateNode:
    path, flags = request.path, request.flags
    if flags in _TTL_FLAGS:
        raise RefusedError(KeeperCode.UNIMPLEMENTED, f"{path}: nodes with a time to live")
    if not 0 <= flags <= _FLAGS_MAX:
        raise RefusedError(KeeperCode.BAD_ARGUMENTS, f"{path}: flags {flags}")
    isSequential = flags != CONTAINER_FLAGS and bool(flags & SEQUENCE_FLAG)
    requireValidPath(path + "1" if isSequential else path)
    if path == "/" and not isSequential:
        raise RefusedError(KeeperCode.NODE_EXISTS, "/: it is there")
    acls = _validAcls(path, request.acls, client)
    parentPath = parentOf(path)
    parent = requireNode(tree, parentPath)
    requireAccess(parent, parentPath, CREATE, client)
    if isSequential:
        path = f"{path}{parent.createdCount:010d}"
    if path in tree.nodes:
        raise RefusedError(KeeperCode.NODE_EXISTS, f"{path}: it is there")
    if parent.isEphemeral:
        raise RefusedError(
            KeeperCode.NO_CHILDREN_FOR_EPHEMERALS, f"{path}: its parent is ephemeral"
        )
    _requireRoom(tree, path, request.data, sizeMax)
    if flags == CONTAINER_FLAGS:
        owner = CONTAINER_OWNER
    else:
        owner = client.sessionId if flags & EPHEMERAL_FLAG else 0
    return CreateNode(path, request.data, acls, owner)


def _requireRoom(tree: DataTree, path: str, data: bytes | None, sizeMax: int) -> None:
    if tree.size + len(data or b"") > sizeMax:
        raise RefusedError(
            KeeperCode.QUOTA_EXCEEDED,
            f"{path}: the tree takes {tree.size} bytes, at most {sizeMax}",
        )


def _delete(tree: DataTree, request: DeleteRequest, client: Client) -> DeleteNode:
    path = request.path
    if path == "/" or path in SYSTEM_PATHS or not path.startswith("/"):
        raise RefusedError(KeeperCode.BAD_ARGUMENTS, f"{path!r} cannot be deleted")
    parentPath = parentOf(path)
    parent, node = requireNode(tree, parentPath), requireNode(tree, path)
    requireAccess(parent, parentPath, DELETE, client)
    _requireVersion(path, request.version, node.version)
    if tree.childCount(path):
        raise RefusedError(KeeperCode.NOT_EMPTY, f"{path}: it has children")
    return DeleteNode(path)


def _setData(tree: DataTree, request: SetDataRequest, client: Client, sizeMax: int) -> SetData:
    requireValidPath(request.path)
    node = requireNode(tree, request.path)
    requireAccess(node, request.path, WRITE, client)
    _requireVersion(request.path, request.version, node.version)
    _requireRoom(tree, request.path, request.data, sizeMax)
    return SetData(request.path, request.data)


def _setAcl(tree: DataTree, request: SetAclRequest, client: Client, sizeMax: int) -> SetAcl:
    requireValidPath(request.path)
    acls = _validAcls(request.path, request.acls, client)
    node = requireNode(tree, request.path)
    requireAccess(node, request.path, ADMINISTER, client)
    _requireVersion(request.path, request.version, node.aversion)
    if len(acls) > 1:  # a tree that is full can still be closed to others
        _requireRoom(tree, request.path, b"", sizeMax)
    return SetAcl(request.path, acls)
