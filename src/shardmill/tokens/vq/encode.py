"""Encodes batches on a device: launched without waiting, replayed as graphs, halved when too large.

A batch that does not fit into the memory is encoded in halves, and from then on no batch has more
pixels than what fitted. On a GPU the kernels of a shape that comes again and again are recorded and
replayed, so that nothing waits for Python. A recording holds the memory of its batch, so there are
only a few, and they go first when the memory runs out.

The codes of an image are a function of the image, the weights and the precision. On a GPU they do
not depend on the batch. On a CPU they would: the libraries add up in another order for each size of
a batch and number of threads. So each image is encoded alone by one thread, and threads take images
beside each other, which is as fast as batches are.

One process works on one GPU, without anyone assigning them: each locks a file named after a GPU,
and the lock ends with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, UnitFailed
from shardmill.tokens.vq.tokenizer import LiveTokenizer

Tensor = Any
WARM_UPS = 2
MAX_GRAPHS = 6  # each holds the memory of its batch
SHARE_OF_FULL = 4  # the last batches are padded to a quarter, a sixteenth, ... of a full one
USES_BEFORE_GRAPH = 2  # a shape that comes once, such as the last batch's, is not worth recording


@dataclass(frozen=True, slots=True)
class Launched:
    """Codes that may still be on their way; on a GPU an event tells when they have arrived."""

    codes: Tensor
    arrived: Any

    def wait(self) -> NDArray[np.int32]:
        """Return the codes [batch, rows, columns] once they are there."""
        if self.arrived is not None:
            with device_errors():
                self.arrived.synchronize()
        codes: NDArray[np.int32] = self.codes.numpy()
        return codes


@dataclass(frozen=True, slots=True)
class LaunchedEach:
    """Codes of images that threads encode, each alone."""

    codes: list[Future[Tensor]]

    def wait(self) -> NDArray[np.int32]:
        """Return the codes [batch, rows, columns] once all are there."""
        return np.concatenate([codes.result().numpy() for codes in self.codes])


class EachEncoder:
    """Encodes images of a batch beside each other on threads of the CPU, each of them alone."""

    def __init__(self, tokenizer: LiveTokenizer, num_threads: int) -> None:
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(num_threads, "encode", initializer=use_one_thread)

    def launch(self, pixels: Tensor, count: int | None = None) -> LaunchedEach:
        """Begin to encode the first `count` images, which must stay as they are until the end."""
        images = pixels[:count].split(1)
        return LaunchedEach([self._pool.submit(self._tokenizer.encode, image) for image in images])


def use_one_thread() -> None:
    """Let torch compute in the thread that calls, and in no other."""
    torch.set_num_threads(1)


class BatchEncoder:
    """Encodes batches of bytes [batch, height, width, 3] that lie in this machine's memory."""

    def __init__(self, tokenizer: LiveTokenizer, device: Any) -> None:
        self._tokenizer, self._device = tokenizer, torch.device(device)
        self._is_gpu = self._device.type == "cuda"
        self._graphs: dict[tuple[int, ...], _Replay] = {}
        self._max_graphs = MAX_GRAPHS
        self._num_uses: Counter[tuple[int, ...]] = Counter()
        self._max_pixels: int | None = None

    def launch(self, pixels: Tensor, count: int | None = None) -> Launched:
        """Begin to encode a batch, of which `count` places are taken, by default all.

        `pixels` must stay as they are until the codes arrived.
        """
        size = len(pixels)
        # Of 32 places, 5 images take 8: 2 would be too few. So few shapes are encoded, of each of
        # which a graph is recorded.
        while count is not None and -(-size // SHARE_OF_FULL) >= count and size > 1:
            size = -(-size // SHARE_OF_FULL)
        with device_errors():
            codes = torch.cat(self._encode_what_fits(pixels[:size]))
            if not self._is_gpu:
                return Launched(codes, None)
            # Only into pinned memory can a copy run while the next batch is launched.
            host = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
            host.copy_(codes, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            return Launched(host, arrived)

    def _encode_what_fits(self, pixels: Tensor) -> list[Tensor]:
        area = pixels.shape[1] * pixels.shape[2]
        if self._max_pixels is None or len(pixels) * area <= self._max_pixels or len(pixels) == 1:
            try:
                return [self._encode(pixels)]
            except torch.OutOfMemoryError:
                if self._drop_graphs():
                    return self._encode_what_fits(pixels)
                if len(pixels) == 1:
                    raise
                self._max_pixels = len(pixels) // 2 * area
        half = len(pixels) // 2
        return self._encode_what_fits(pixels[:half]) + self._encode_what_fits(pixels[half:])

    def _encode(self, pixels: Tensor) -> Tensor:
        if not (self._is_gpu and self._tokenizer.can_replay):
            return self._tokenizer.encode(pixels.to(self._device, non_blocking=True))
        shape = tuple(pixels.shape)
        self._num_uses[shape] += 1
        if shape not in self._graphs:
            if self._num_uses[shape] <= USES_BEFORE_GRAPH or len(self._graphs) >= self._max_graphs:
                return self._tokenizer.encode(pixels.to(self._device, non_blocking=True))
            self._graphs[shape] = _Replay(self._tokenizer, shape, self._device)
        # The next replay overwrites its codes, and one batch may need several replays.
        return self._graphs[shape].encode(pixels).clone()

    def _drop_graphs(self) -> bool:
        """Give back the memory of all recordings, and say whether there were any."""
        dropped = len(self._graphs)
        self._graphs.clear()
        if self._is_gpu:
            torch.cuda.empty_cache()
        if dropped:
            self._max_graphs = dropped - 1
        return dropped > 0


class _Replay:
    """The kernels for one shape, recorded."""

    def __init__(self, tokenizer: LiveTokenizer, shape: tuple[int, ...], device: Any) -> None:
        self._pixels = torch.zeros(shape, dtype=torch.uint8, device=device)
        # What is compiled or looked up at the first call cannot be recorded.
        for _ in range(WARM_UPS):
            tokenizer.encode(self._pixels)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._codes = tokenizer.encode(self._pixels)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the codes, which stand until the next call."""
        self._pixels.copy_(pixels, non_blocking=True)
        self._graph.replay()
        return self._codes


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn what a GPU reports when it fails into an error that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UnitFailed(
            "one image alone does not fit into the GPU's memory: use smaller images"
        ) from error
    except RuntimeError as error:
        if "CUDA error" not in str(error):
            raise
        first_line = str(error).splitlines()[0]
        raise UnitFailed(
            f"the GPU failed ({first_line}); what is done is kept: run the same command again"
        ) from error


DEVICE_VARIABLE = "SHARDMILL_DEVICE"
_claims: list[IO[bytes]] = []


def num_gpus() -> int:
    """Return how many GPUs this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def count_devices() -> int:
    """Return how many processes should encode here: one a GPU, 0 if there is none to use."""
    wanted = _wanted_device()
    return int(wanted.startswith("cuda")) if wanted else num_gpus()


def choose_device() -> str:
    """Return the device that $SHARDMILL_DEVICE names, else a GPU of one's own, else the CPU."""
    return _wanted_device() or (claim_gpu(num_gpus()) if num_gpus() else "cpu")


def _wanted_device() -> str:
    wanted = os.environ.get(DEVICE_VARIABLE, "")
    kind, _, number = wanted.partition(":")
    if wanted and (kind not in ("cpu", "cuda") or not (number or "0").isdigit()):
        raise ConfigError(f"--device {wanted} is none: use cpu, cuda or one such as cuda:1")
    if kind == "cuda" and int(number or "0") >= num_gpus():
        raise ConfigError(
            f"--device {wanted} (or ${DEVICE_VARIABLE}) is not here: this process may use "
            f"{num_gpus()} GPUs"
        )
    return wanted


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
