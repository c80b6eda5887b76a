"""How many workers fit on a node, and how a head that is gone is noticed."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from shardmill.run.ray import actors as ray_cluster
from shardmill.run.ray.actors import ClusterLost, HeadWatch, count_fitting


@pytest.mark.parametrize(
    ("resources", "needs", "count"),
    [
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 0.0}, 8),
        ({"CPU": 8.0}, {"CPU": 3.0, "GPU": 0.0}, 2),
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}, 0),
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, 2),
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 0.0, "GPU": 0.5}, 4),
        ({}, {"CPU": 1.0}, 0),
    ],
)
def test_the_scarcest_resource_decides(
    resources: dict[str, float], needs: dict[str, float], count: int
) -> None:
    assert count_fitting(resources, needs) == count


def ray_with_head(address: str) -> Any:
    """As much of Ray as the watch looks at."""
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False))
    context = SimpleNamespace(gcs_address=address)
    return SimpleNamespace(util=SimpleNamespace(client=client), get_runtime_context=lambda: context)


def test_a_head_that_is_silent_for_a_while_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    watch = HeadWatch(ray_with_head(f"127.0.0.1:{server.getsockname()[1]}"))
    assert watch.is_there()
    server.close()
    assert not watch.is_there(), "it may come back"
    monkeypatch.setattr(ray_cluster, "HEAD_GRACE_S", 0.0)
    with pytest.raises(ClusterLost, match="run the same command"):
        watch.is_there()
