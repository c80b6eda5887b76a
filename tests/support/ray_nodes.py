"""A real Ray cluster on this machine: a head without processors, and nodes that come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivers import children_of

# Nodes report their death within a second or two instead of half a minute.
FAST_DEATH = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}


@contextmanager
def ray_cluster(*cpus_of_nodes: float, gpus: float = 0, client_port: int = 0) -> Iterator[Any]:
    """Yield a `ray.cluster_utils.Cluster` with such nodes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "num_gpus": 0,
            "include_dashboard": False,
            "ray_client_server_port": client_port or None,
            "_system_config": {**FAST_DEATH, "health_check_failure_threshold": 3},
        },
    )
    try:
        for num_cpus in cpus_of_nodes:
            cluster.add_node(num_cpus=num_cpus, num_gpus=gpus, wait=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def kill_head(cluster: Any) -> None:
    """Kill the head's processes."""
    cluster.head_node.kill_gcs_server(check_alive=False)
    cluster.head_node.kill_raylet(check_alive=False)


def worker_pids(cluster: Any) -> list[int]:
    """Return the actors that run on the nodes of a cluster."""
    found = []
    for node in cluster.list_all_nodes():
        for raylet in node.all_processes.get("raylet", ()):
            found += [pid for pid in children_of(raylet.process.pid) if _is_actor(pid)]
    return found


def _is_actor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_Actor")
    except OSError:
        return False
