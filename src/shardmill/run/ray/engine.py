"""The engine of Ray: the driver hands out units to actors of a cluster, one that exists or its own.

A CPU stage gets an actor for each processor, a GPU stage one for each GPU or part of a GPU; each
opens the stage once. Actors hold a few units at a time. If a node dies, its units go to others; if
the driver or the head dies, the next driver goes on from the receipts.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, need
from shardmill.machine import count_cpus
from shardmill.run.engine import Errand
from shardmill.run.local import check_importable
from shardmill.run.lock import part_lock_name
from shardmill.run.pool import Fleet
from shardmill.run.ray.actors import ClusterLost, RayCrew, abandon, count_fitting, nodes_of

KNOCK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """A cluster at `address`, or else one on this machine that ends with the run.

    The address is "ray://host:10001" from outside of the cluster, "host:6379" or "auto" on one of
    its machines. Each worker takes `cpus` processors and `gpus` GPUs, which may be parts.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0 or self.cpus + self.gpus == 0:
            raise ConfigError(f"a worker needs CPUs or GPUs, got {self.cpus} and {self.gpus}")

    def lock_name(self, part: tuple[int, int]) -> str:
        """Return the name of the lock of a driver."""
        return part_lock_name(part)

    def check(self) -> None:
        """Connect to the cluster, and see that a worker fits on one of its nodes."""
        ray = need("ray", extra="ray")
        if not ray.is_initialized():
            self._connect(ray)
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = list(nodes_of(ray).values())
        if not any(count_fitting(node, needs) for node in nodes):
            ray.shutdown()
            raise ConfigError(
                f"no node of the Ray cluster has room for a worker of {self.cpus:g} CPUs and "
                f"{self.gpus:g} GPUs; it has {_describe(nodes)}. Ask for less, as in "
                "--on ray,cpus=1,gpus=0, or add such a node"
            )

    def work(self, errand: Errand) -> None:
        """Hand out the units to actors."""
        check_importable(errand)
        ray = need("ray", extra="ray")
        crew = RayCrew(
            ray,
            errand.job,
            cpus=self.cpus,
            gpus=self.gpus,
            limit=errand.num_workers,
            on_event=errand.on_event,
        )
        fleet = Fleet(
            errand.job,
            errand.units,
            crew,
            on_event=errand.on_event,
            should_stop=errand.should_stop,
        )
        # Ray prints pages about nodes that died to standard output, which belongs to the report.
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            try:
                fleet.run()
            except ClusterLost:
                abandon(ray)
                raise
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            options |= {"num_cpus": count_cpus(), "include_dashboard": False}
        try:
            _knock(self.address or "")
            ray.init(address=self.address or "local", **options)
        except (ConnectionError, RuntimeError, OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"cannot reach a Ray cluster at {self.address or 'this machine'}: "
                f"{_first_line(error)}. Is it running (ray status), and is the address "
                "ray://HOST:10001 from outside of it, or HOST:6379 on one of its machines?"
            ) from error


def _knock(address: str) -> None:
    """Raise `OSError` if nobody listens at an address, which Ray finds out in minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


def _describe(nodes: list[dict[str, float]]) -> str:
    rows = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes]
    return f"{len(rows)} nodes: {', '.join(rows[:8])}" if rows else "no nodes"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
