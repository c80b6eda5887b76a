"""A cluster of Ray as a driver sees it: its nodes, how many workers fit, whether its head lives."""

from __future__ import annotations

import atexit
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from shardmill.errors import ShardmillError

HEAD_GRACE_S = 10.0


def count_fitting(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many workers fit on a node: the scarcest resource decides."""
    counts = [int(resources.get(name, 0.0) / need) for name, need in needs.items() if need > 0]
    return min(counts, default=1)


def nodes_of(ray: Any) -> dict[str, dict[str, float]]:
    """Return the resources of each living node by its id."""
    try:
        return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise lost(error) from error


class ClusterLost(ShardmillError):
    """The cluster has gone away under the driver."""


def lost(error: Exception) -> ClusterLost:
    """Return the error for a cluster that has gone away."""
    return ClusterLost(
        f"the Ray cluster has gone away ({type(error).__name__}). What is done is kept: start the "
        "cluster again, and run the same command"
    )


class HeadWatch:
    """Notices that the head is gone before Ray does, which would end this process without a word.

    Ray waits a minute for a head that does not answer and then aborts the driver.
    """

    def __init__(self, ray: Any) -> None:
        address = "" if ray.util.client.ray.is_connected() else _head_address(ray)
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port)) if port else None
        self._silent_since_s: float | None = None

    def is_there(self) -> bool:
        """Ask the head and return whether it answers; raise if it has been silent for a while."""
        try:
            if self._address is not None:
                socket.create_connection(self._address, timeout=1.0).close()
            self._silent_since_s = None
        except OSError as error:
            now_s = time.monotonic()
            self._silent_since_s = self._silent_since_s or now_s
            if now_s - self._silent_since_s >= HEAD_GRACE_S:
                raise lost(error) from error
        return self._silent_since_s is None


def abandon(ray: Any) -> None:
    """Leave a cluster whose head is gone, without the goodbyes that would wait for its answer."""
    atexit.unregister(ray.shutdown)
    sys.excepthook = sys.__excepthook__


def _head_address(ray: Any) -> str:
    return str(ray.get_runtime_context().gcs_address)
