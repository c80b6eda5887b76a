"""The packages that benchmarks and tests compare with, each in a folder of its own.

They are installed without their dependencies, which the development environment has, and put in
front of the path of the processes that use them; so they disturb neither it nor each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PEERS_DIR = Path(__file__).resolve().parent.parent / ".cache" / "peers"

# name -> what pip installs there; exact versions, so that figures can be compared over time
PEERS: dict[str, tuple[str, ...]] = {
    "wids": ("webdataset==0.2.111", "braceexpand==0.1.7"),  # the last release with wids
    "array_record": (
        "array_record==0.8.6",
        "absl-py==2.5.1",
        "etils==1.14.0",
        "importlib_resources==7.1.0",
        "zipp==4.1.2",
    ),
    "datatrove": (
        "datatrove==0.10.1",
        "dill==0.4.1",
        "loguru==0.7.3",
        "humanize==4.16.0",
        "multiprocess==0.70.19",
    ),
    "megatron": ("megatron-core==0.16.0",),
    "nemo": (
        "nemo-automodel==0.7.0",
        "torchao==0.18.0",
        "flashoptim==0.1.4",
        "megatron-fsdp==0.5.0",
    ),
    "llamafactory": ("llamafactory==0.9.5",),
    "torchcodec": ("torchcodec==0.13.0",),
    "decord": ("decord==0.6.0",),
    "decord2": ("decord2==3.4.0",),
    "opencv": ("opencv-python-headless==5.0.0.93",),
    "binpacking": ("binpacking==2.0.1",),
    "litdata": (
        "litdata==0.2.76",
        "lightning-utilities==0.15.3",
        "tifffile==2025.5.10",
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
    ),
    "streaming": (
        "mosaicml-streaming==0.13.0",
        "brotli",
        "python-snappy",
        "cramjam",
        "zstd",
        "catalogue",
        "paramiko",
    ),
}


def peer_dir(name: str) -> Path:
    """Return the folder of a peer, installing it on first use."""
    folder = PEERS_DIR / name
    done = folder / "installed.txt"
    wanted = "\n".join(PEERS[name])
    if not done.exists() or done.read_text() != wanted:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(folder), *PEERS[name]], check=True)
        done.write_text(wanted)
    return folder


def peer_environment(name: str | None) -> dict[str, str]:
    """Return the environment of a process that imports a peer; None means no peer."""
    # As installed packages are: compiled once, not at the start of each process.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if name is None:
        return kept
    before = os.environ.get("PYTHONPATH")
    path = [str(peer_dir(name)), *([before] if before else [])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def let_torchvision_load() -> None:
    """Declare the operators that torchvision asks for when it is imported.

    Its wheel has none for a torch without CUDA; streaming and litdata import it.
    """
    import torch

    global _library  # the operators go with the object
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    for peer in sys.argv[1:] or PEERS:
        print(peer, peer_dir(peer))
