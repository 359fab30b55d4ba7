"""The server of a key, and a pool of connections with the settings of the program's client."""

from __future__ import annotations

import inspect
import random
import socket
from typing import Any

from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisClusterException

from ._options import Key

Address = tuple[Any, Any]

# Older versions of redis-py require the name of a command to get a connection.
_TAKES_NONE = "command_name=None" in str(inspect.signature(ConnectionPool.get_connection))
NAME = () if _TAKES_NONE else ("_",)

# Keepalive notices a peer that died silently, even while nothing is sent.
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

# perf: The name and the version of the library cost a new connection two round trips.
_NAMELESS: dict[str, Any] = {"lib_name": None, "lib_version": None}
if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters:
    # Newer versions of redis-py deprecate the two.
    _NAMELESS = {"driver_info": None}


class Servers:
    """Finds the server of a key by the program's client, and makes one pool for each server.

    The pools are redis-py's own, apart from the program's. So a wait takes no connection from the
    program, and every connection has the command timeout.
    """

    def __init__(self, client: Any, io: Any, attempt_seconds: float) -> None:
        self.client = client
        self.is_cluster = hasattr(client, "get_node_from_key")
        self._io = io
        self.attempt_seconds = attempt_seconds

    async def address(self, key: Key, until: float, failed: Any = None) -> Address | None:
        """Return the address of the key's node in a cluster, or None if there is one server.

        If that node failed, another one redirects to the node that serves the slot now.
        """
        if not self.is_cluster:
            return None
        if not self.client.get_nodes():
            await self._io.learn_nodes(self.client, until)
        try:
            node = self.client.get_node_from_key(key)
        except (RedisClusterException, KeyError, IndexError):
            node = None
        nodes = [it for it in self.client.get_nodes() if (it.host, it.port) != failed]
        if nodes and node not in nodes:
            node = random.choice(nodes)
        return node.host, node.port

    async def moved(self, error: Any) -> None:
        """Tell the program's client where a slot is now."""
        nodes = self.client.nodes_manager
        if hasattr(nodes, "move_slot"):
            await self._io.done(nodes.move_slot(error))
        else:
            # redis-py 5 reads it when it looks for the slot.
            nodes._moved_exception = error

    def pool(self, address: Address | None) -> Any:
        self._io.begin()
        pools = self._io.pools
        if address not in pools:
            pools.setdefault(address, self._new_pool(address))
        return pools[address]

    def name(self, address: Address | None) -> str:
        """Return the address in words."""
        if address is not None:
            return f"{address[0]}:{address[1]}"
        if self.is_cluster:
            return "the cluster"
        pool = self.client.connection_pool
        settings = {"host": "localhost", "port": 6379, **pool.connection_kwargs}
        place = settings.get("path") or f"{settings['host']}:{settings['port']}"
        return str(getattr(pool, "service_name", place))

    def _new_pool(self, address: Address | None) -> Any:
        if address is None:
            source = self.client.connection_pool
        else:
            source = self._io.node_settings(self.client, address)
        settings = {
            name: value
            for name, value in source.connection_kwargs.items()
            if "maint_notifications" not in name
            and name not in ("connection_pool", "lib_name", "lib_version")
        }
        settings.update(
            decode_responses=False,
            protocol=2,
            socket_connect_timeout=self.attempt_seconds,
            max_connections=2**31 - 1,
            health_check_interval=0,
            **_NAMELESS,
            **self._io.settings(self.attempt_seconds),
        )
        if address is not None:
            settings.update(host=address[0], port=address[1])
        if "path" not in settings:
            settings.update(socket_keepalive=True, socket_keepalive_options=KEEPALIVE)
        if not hasattr(source, "sentinel_manager"):
            return self._io.pool_class(connection_class=source.connection_class, **settings)
        # The connections ask the program's Sentinels for the primary.
        settings.pop("host", None)
        settings.pop("port", None)
        return type(source)(source.service_name, source.sentinel_manager, **settings)
