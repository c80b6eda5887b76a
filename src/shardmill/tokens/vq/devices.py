"""Which device a process works on: one process a GPU, without anyone handing them out.

Each process locks a file named after a GPU; the lock ends with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import torch

from shardmill.errors import ConfigError

DEVICE_VARIABLE = "SHARDMILL_DEVICE"
_claims: list[IO[bytes]] = []


def num_gpus() -> int:
    """Return how many GPUs this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def count_devices() -> int:
    """Return how many processes should encode here: one a GPU, 0 if there is none to use."""
    wanted = os.environ.get(DEVICE_VARIABLE)
    return int(wanted.startswith("cuda")) if wanted else num_gpus()


def choose_device() -> str:
    """Return the device that $SHARDMILL_DEVICE names, else a GPU of one's own, else the CPU."""
    wanted = os.environ.get(DEVICE_VARIABLE)
    if wanted:
        if wanted.startswith("cuda") and not num_gpus():
            raise ConfigError(f"{DEVICE_VARIABLE} is {wanted!r}, but no GPU can be used here")
        return wanted
    return claim_gpu(num_gpus()) if num_gpus() else "cpu"


def claim_gpu(count: int) -> str:
    """Return the first GPU that no other process has claimed; if all are, share one."""
    for number in range(count):
        path = Path(tempfile.gettempdir()) / f"shardmill-gpu-{os.getuid()}-{_name(number)}.lock"
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        _claims.append(file)
        return f"cuda:{number}"
    return f"cuda:{os.getpid() % count}"


def _name(number: int) -> str:
    # CUDA_VISIBLE_DEVICES renumbers GPUs, so that number 0 may be another one in each process.
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[number].replace("/", "_") if number < len(visible) else str(number)
