"""Images to codes as one flow: decoded on threads, gathered by size, encoded while more decode.

The size of an image is known from its header, so each gets a place in a batch of its size at once,
and its thread writes there. An image that turns out to be broken leaves its place unused.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.image.decode import Content, decode_image, resize_crop
from shardmill.media.image.geometry import Fit, Geometry
from shardmill.media.sizes import probe

MAX_GATHERING = 8  # sizes for which images are gathered; the oldest batch makes room
MAX_FREE = 12  # batches whose memory is kept for the next ones
NUM_DECODING = 3  # full batches whose images are being decoded
NUM_LAUNCHED = 2  # batches that the device has not given back
SHARE_OF_FULL = 4  # the last batches are padded to a quarter, a sixteenth, ... of a full one

Size: TypeAlias = tuple[int, int]
Outcome: TypeAlias = NDArray[Any] | SampleError
OnFirst: TypeAlias = Callable[[int, Any], None]


class Launch(Protocol):
    """A batch on its way."""

    def wait(self) -> NDArray[Any]:
        """Return the codes."""


class Encoder(Protocol):
    """What encodes batches."""

    def launch(self, pixels: Any) -> Launch:
        """Begin to encode."""


@dataclass(slots=True)
class Batch:
    """Places for images of one size, which of them are taken, and by whom."""

    pixels: Any
    numbers: list[int] = field(default_factory=list)
    decoded: list[Future[SampleError | None]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether all places are taken."""
        return len(self.numbers) == len(self.pixels)


class Flow:
    """The threads, buffers and device behind the encoding; lives as long as its process."""

    def __init__(
        self,
        geometry: Geometry,
        encoder: Encoder,
        *,
        num_threads: int,
        batch_pixels: int,
        pin: bool,
        allow_truncated: bool = False,
    ) -> None:
        self._geometry, self._encoder = geometry, encoder
        self._batch_pixels, self._pin = batch_pixels, pin
        self._allow_truncated = allow_truncated
        self._pool = ThreadPoolExecutor(num_threads, "decode", initializer=_one_thread_each)
        self._free: dict[Size, list[Any]] = defaultdict(list)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def encode(self, images: Iterable[Content], on_first: OnFirst | None = None) -> list[Outcome]:
        """Return, in order, the codes of each image or why it has none.

        `on_first` gets number and pixels of the first good image before it is encoded.
        """
        return _Run(self, on_first).encode(images)

    def start(self, batch: Batch, content: Content, fit: Fit, size: Size) -> None:
        """Let a thread decode an image into the next place of a batch."""
        place = batch.pixels[len(batch.decoded)].numpy()
        batch.decoded.append(
            self._pool.submit(_decode_into, place, content, fit, size, self._allow_truncated)
        )

    def fit(self, content: Content) -> tuple[Fit, Size]:
        """Return how an image is brought to size, and the size that its header says."""
        size = probe("image", content).size
        return self._geometry.fit(size.width, size.height), (size.width, size.height)

    def take(self, size: Size) -> Batch:
        """Return an empty batch for images of this size."""
        import torch

        if self._free[size]:
            return Batch(self._free[size].pop())
        width, height = size
        count = max(1, self._batch_pixels // (width * height))
        shape = (count, height, width, 3)
        return Batch(torch.zeros(shape, dtype=torch.uint8, pin_memory=self._pin))

    def give_back(self, batch: Batch) -> None:
        """Keep a batch's memory for the next one of its size."""
        _, height, width, _ = batch.pixels.shape
        if sum(map(len, self._free.values())) >= MAX_FREE:
            self._free.clear()
        self._free[width, height].append(batch.pixels)

    def launch(self, batch: Batch) -> Launch:
        """Begin to encode a batch that is decoded; a small one goes without its empty places."""
        size = len(batch.pixels)
        while -(-size // SHARE_OF_FULL) >= len(batch.numbers) and size > 1:
            size = -(-size // SHARE_OF_FULL)
        return self._encoder.launch(batch.pixels[:size])


class _Run:
    """One call of `Flow.encode`: what is gathered, decoded and launched at this moment."""

    def __init__(self, flow: Flow, on_first: OnFirst | None) -> None:
        self._flow, self._on_first = flow, on_first
        self._gathering: dict[Size, Batch] = {}
        self._decoding: deque[Batch] = deque()
        self._launched: deque[tuple[Batch, Launch]] = deque()
        self._outcomes: list[Outcome | None] = []

    def encode(self, images: Iterable[Content]) -> list[Outcome]:
        for content in images:
            self._add(content)
            while len(self._decoding) > NUM_DECODING:
                self._launch_next()
        self._decoding.extend(self._gathering.values())
        while self._decoding:
            self._launch_next()
        while self._launched:
            self._collect_next()
        assert all(outcome is not None for outcome in self._outcomes)
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _add(self, content: Content) -> None:
        number = len(self._outcomes)
        self._outcomes.append(None)
        try:
            fit, size = self._flow.fit(content)
        except SampleError as error:
            self._outcomes[number] = error
            return
        wanted = fit.width, fit.height
        batch = self._gathering.get(wanted)
        if batch is None:
            if len(self._gathering) >= MAX_GATHERING:
                oldest = next(iter(self._gathering))
                self._decoding.append(self._gathering.pop(oldest))
            batch = self._gathering[wanted] = self._flow.take(wanted)
        batch.numbers.append(number)
        self._flow.start(batch, content, fit, size)
        if batch.is_full:
            self._decoding.append(self._gathering.pop(wanted))

    def _launch_next(self) -> None:
        batch = self._decoding.popleft()
        for number, decoded in zip(batch.numbers, batch.decoded):
            self._outcomes[number] = decoded.result()
        self._tell_first(batch)
        self._launched.append((batch, self._flow.launch(batch)))
        while len(self._launched) > NUM_LAUNCHED:
            self._collect_next()

    def _tell_first(self, batch: Batch) -> None:
        good = [i for i, n in enumerate(batch.numbers) if self._outcomes[n] is None]
        if good and self._on_first is not None:
            self._on_first(batch.numbers[good[0]], batch.pixels[good[0]].clone())
            self._on_first = None

    def _collect_next(self) -> None:
        batch, launch = self._launched.popleft()
        for number, codes in zip(batch.numbers, launch.wait()):
            if self._outcomes[number] is None:
                self._outcomes[number] = codes
        self._flow.give_back(batch)


def _decode_into(
    place: NDArray[np.uint8], content: Content, fit: Fit, size: Size, allow_truncated: bool
) -> SampleError | None:
    try:
        pixels = decode_image(content, allow_truncated=allow_truncated)
        if pixels.shape[:2] != size[::-1]:
            detail = f"{size} in its header, {pixels.shape[:2][::-1]} when decoded"
            return SampleError("broken image", detail)
        place[...] = resize_crop(pixels, fit)
    except SampleError as error:
        return error
    return None


def _one_thread_each() -> None:
    # There is a thread for each processor already: an operation must not start more.
    import torch

    torch.set_num_threads(1)
