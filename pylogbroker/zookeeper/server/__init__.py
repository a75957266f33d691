"""
A standalone ZooKeeper server: the protocol of ZooKeeper 3.9 as kazoo, C{zkCli.sh} and the clients
of Kafka 0.7 speak it, one process, no ensemble. For development and tests; production wants a real
ensemble of three or five servers.

B{How a request travels.} L{pylogbroker.zookeeper.server.connection} takes frames from a socket, in
order. L{pylogbroker.zookeeper.server.requests} decodes one. A read is answered from the tree
(L{pylogbroker.zookeeper.server.datatree}). A write becomes a transaction
(L{pylogbroker.zookeeper.server.changes}), which is applied to the tree at once and handed to the
log (L{pylogbroker.zookeeper.server.transactionlog}). A worker thread writes and syncs all
transactions that wait, as one batch (L{pylogbroker.zookeeper.server.service}).

B{What must be true.} Nothing leaves the server before what it tells is synced: an answer waits for
its own transaction, a read or a watch event for the youngest transaction that it shows. So a server
that was killed never takes back what a client has seen. The answers of a connection are in the
order of its requests. When the log fails, the server closes every connection and ends.
"""
