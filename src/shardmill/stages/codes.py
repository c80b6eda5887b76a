"""Codes: the images of sample shards become code shards, encoded once and joined by key later.

A sample is kept when all its images are; its texts and other media stay where they are. One image
of each unit is also encoded in fp32, and the counts say how many codes were equal.

`ImageFlow` keeps the device busy: images are decoded on threads, gathered by size, and encoded
while more decode. The size of an image is known from its header, so each gets a place in a batch of
its size at once, and its thread writes there. An image that turns out to be broken leaves its place
unused.

What a finished folder is worth: `codebook_use` says how the codebook is used, `reconstruct` what
images come back from it. One that comes back much worse than the others was cut wrongly, is not
what the tokenizer has learned, or has the codes of another: `outliers` finds these.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError, check_packages
from shardmill.machine import count_cpus
from shardmill.media.geometry import Geometry, ResizeCrop, Square
from shardmill.media.header import probe
from shardmill.media.image import (
    DISPLAYED,
    Content,
    Decoding,
    decode_image,
    image_size,
    resize_crop,
)
from shardmill.model.codec import from_plain
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.codes import (
    ROLE,
    CodeShard,
    ImageCodes,
    code_dtype,
    open_codes,
    write_codes,
)
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.samples import (
    SampleDataset,
    SampleShard,
    foreign_name,
    open_samples,
    parse_sample,
)
from shardmill.sources.source import media_kind, name_from_path
from shardmill.stages.inputs import (
    OverSamples,
    check_numbers,
    count_images,
    num_wanted,
    open_unit,
    sample_units,
)
from shardmill.tokens.vq.tokenizer import ImageTokenizer, Scaling

Precision = Literal["fp32", "tf32", "fp16"]
COMPARED = "codes compared with fp32"
EQUAL = "codes equal to fp32"
THREADS_VARIABLE = "SHARDMILL_THREADS"
BATCH_VARIABLE = "SHARDMILL_BATCH_PIXELS"
GPU_BATCH_PIXELS = 32 * 512 * 512
CPU_BATCH_PIXELS = 512 * 512  # of each thread
MAX_GATHERING = 8  # sizes for which images are gathered; the oldest batch makes room
MAX_FREE = 12  # batches whose memory is kept for the next ones
NUM_DECODING = 3  # full batches whose images are being decoded
NUM_LAUNCHED = 2  # batches that the device has not given back

MAX_PSNR = 100.0
OUTLIER_DEVIATIONS = 4.0
# The median of deviations of a normal distribution is 0.6745 standard deviations.
MEDIAN_TO_DEVIATION = 1 / 0.6745

Pixels: TypeAlias = NDArray[np.uint8]
Size: TypeAlias = tuple[int, int]
Outcome: TypeAlias = NDArray[Any] | SampleError
OnFirst: TypeAlias = Callable[[int, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What another program does with images before it encodes them, at any resolution."""

    geometry: Square
    decoding: Decoding
    scaling: Scaling
    allow_truncated: bool = False


# `Image.open(...).convert("RGB")`, and nothing else.
CONVERTED = Decoding(alpha="drop", depth="clip", orientation="ignore")
PRESETS: Mapping[str, Preset] = {
    "unidisc": Preset(
        geometry=Square(resample="bilinear", crop="nearest", max_aspect=None),
        decoding=CONVERTED,
        scaling="torchvision",
        allow_truncated=True,
    ),
    "llamagen": Preset(
        geometry=Square(resample="bicubic", rounding="nearest", halve=True, max_aspect=None),
        decoding=CONVERTED,
        scaling="torchvision",
    ),
    "liquid": Preset(geometry=Square(), decoding=CONVERTED, scaling="numpy"),
    "chameleon": Preset(
        geometry=Square(max_aspect=None),
        decoding=Decoding(depth="clip", orientation="ignore"),
        scaling="transformers",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeImages(OverSamples):
    """The spec of an encoding; `tokenizer` is pinned to the values of its weights."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "codes"
    works_on: ClassVar[str] = "images"
    needs: ClassVar[tuple[str, ...]] = ("torch", "pillow", "simplejpeg")

    tokenizer: ImageTokenizer
    geometry: Geometry
    decoding: Decoding = DISPLAYED
    precision: Precision = "fp32"
    allow_truncated: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.tokenizer.identity():
            raise ConfigError("the tokenizer is not pinned to its weights: call pinned() on it")
        check_numbers(self)
        # A tokenizer of a user's own may not know it; then it shows when the weights are loaded.
        factor = getattr(self.tokenizer, "factor", None)
        if factor:
            check_sizes(self.geometry, factor)

    @property
    def preset(self) -> str | None:
        """The name of the program whose pixels these are, None if they are of no other."""
        scaling = getattr(self.tokenizer, "scaling", None)
        for name, preset in PRESETS.items():
            size = getattr(self.geometry, "resolution", None)
            if (
                size is not None
                and self.geometry == replace(preset.geometry, resolution=size)
                and self.decoding == preset.decoding
                and scaling in (None, preset.scaling)
            ):
                return name
        return None

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Load the weights and start the threads, once a process."""
        worker = _Worker(self)
        try:
            yield worker.work
        finally:
            worker.flow.close()


class _Worker:
    """What a process holds while it encodes shard after shard."""

    def __init__(self, spec: EncodeImages) -> None:
        from shardmill.tokens.vq.encode import BatchEncoder, EachEncoder, choose_device, num_gpus

        self._spec, device = spec, choose_device()
        self._live = spec.tokenizer.load(spec.precision, device)
        self._reference: Encoder | None = None
        check_sizes(spec.geometry, self._live.factor)
        on_gpu = device.startswith("cuda")
        default_threads = max(1, count_cpus() // max(1, num_gpus() if on_gpu else 1))
        num_threads = _setting(THREADS_VARIABLE, default_threads)
        encoder: Encoder = EachEncoder(self._live, num_threads)
        if on_gpu:
            encoder = BatchEncoder(self._live, device)
        self.flow = ImageFlow(
            spec.geometry,
            encoder,
            decoding=spec.decoding,
            num_threads=num_threads,
            batch_pixels=_setting(
                BATCH_VARIABLE, GPU_BATCH_PIXELS if on_gpu else num_threads * CPU_BATCH_PIXELS
            ),
            pin=on_gpu,
            allow_truncated=spec.allow_truncated,
        )
        # A second copy of the weights, but a wrong driver or kernel shows in the first unit.
        if spec.precision != "fp32":
            self._reference = BatchEncoder(spec.tokenizer.load("fp32", device), device)

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        """Encode the images of one shard."""
        with open_unit(self._spec.input_dir, unit) as shard:
            reading = _Reading(shard, num_wanted(unit, shard), tally, self._foreign_name(unit))
            comparison = _Comparison(self._reference)
            outcomes = self.flow.encode(reading.images(), comparison.begin)
            comparison.finish(outcomes, tally)
        rows = reading.rows(outcomes, tally, self._live.num_codes)
        write_codes(
            draft.file(unit.name, ROLE),
            rows,
            num_codes=self._live.num_codes,
            factor=self._live.factor,
            about={"weights": self._spec.tokenizer.identity()},
        )
        draft.finish(unit.name, num_samples=len(rows))

    def _foreign_name(self, unit: Unit) -> str | None:
        files: Any = unit.input["files"]
        return None if "tar" in files else foreign_name(self._spec.input_dir, unit.name)


class _Comparison:
    """Encodes one image of a unit in fp32 too, while the others are on their way."""

    def __init__(self, reference: Encoder | None) -> None:
        self._reference = reference
        self._begun: tuple[int, Launch] | None = None

    def begin(self, number: int, pixels: Any) -> None:
        """Begin to encode an image; without a reference there is nothing to compare with."""
        if self._reference is not None:
            self._begun = number, self._reference.launch(pixels[None])

    def finish(self, outcomes: list[Outcome], tally: Tally) -> None:
        """Count the codes that were compared, and those that are equal."""
        if self._begun is not None:
            number, launch = self._begun
            exact = launch.wait()[0]
            tally.count(COMPARED, exact.size)
            tally.count(EQUAL, int((exact == outcomes[number]).sum()))


class _Reading:
    """The samples of a shard in order, and which images belong to which.

    `foreign` is the name of a tar that lies elsewhere, None of one of ours.
    """

    def __init__(
        self, shard: SampleShard, limit: int, tally: Tally, foreign: str | None = None
    ) -> None:
        self._shard, self._limit, self._tally, self._foreign = shard, limit, tally, foreign
        self._samples: list[tuple[str, list[str] | SampleError]] = []
        self._num_videos = 0

    def images(self) -> Iterator[memoryview | bytes]:
        """Yield every image of every sample, in the order of `rows`."""
        for own, raw in self._shard.iter_raw(0, self._limit):
            self._tally.num_begun += 1
            key = own
            try:
                if self._foreign is not None and not is_document(raw):
                    key = name_from_path(f"{self._foreign}/{own}")
                    image = foreign_image(own, raw)
                    self._samples.append((key, [*image]))
                    yield from image.values()
                    continue
                sample = parse_sample(key, raw)
                media = [segment.media for segment in sample.document.media("image")]
                self._num_videos += len(sample.document.media("video"))
                missing = [name for name in media if name not in sample.media]
                if missing:
                    raise SampleError("missing media", f"{key!r} has no medium {missing[0]!r}")
            except SampleError as error:
                self._samples.append((key, error))
                continue
            self._samples.append((key, media))
            yield from (sample.media[name] for name in media)

    def rows(
        self, outcomes: list[Outcome], tally: Tally, num_codes: int
    ) -> list[tuple[str, list[ImageCodes]]]:
        """Return key and codes of each sample that is kept, and account for all of them."""
        rows, dtype, rest = [], code_dtype(num_codes), iter(outcomes)
        if self._num_videos:  # which may be why there are no images
            tally.count("videos", self._num_videos)
        for key, media in self._samples:
            with tally.sample(key):
                if isinstance(media, SampleError):
                    raise media
                found = [(name, next(rest)) for name in media]
                images = [ImageCodes(name, _codes(o).astype(dtype)) for name, o in found]
                rows.append((key, images))
                count_images(tally, images)
        return rows


def is_document(raw: Mapping[str, Content]) -> bool:
    """Say whether the members of a sample are those that `ingest` wrote."""
    try:
        plain = orjson.loads(raw.get("json", b""))
    except orjson.JSONDecodeError:
        return False
    return isinstance(plain, dict) and "segments" in plain


def foreign_image(key: str, raw: Mapping[str, Content]) -> dict[str, Content]:
    """Return the image of a sample that another program wrote, by the name that `ingest` gives it.

    Which of several media comes first, the fields of the sample say: that is for `ingest`.
    """
    media = {ext: content for ext, content in raw.items() if media_kind(ext) is not None}
    if len(media) > 1:
        detail = f"{key!r} has {', '.join(media)}: shardmill ingest puts them into their order"
        raise SampleError("several media", detail)
    images = [content for ext, content in media.items() if media_kind(ext) == "image"]
    return {probe("image", content).ext: content for content in images}


def check_sizes(geometry: Geometry, factor: int) -> None:
    """Raise `ConfigError` unless all sizes are whole numbers of codes."""
    for size in geometry.sizes():
        if any(side % factor for side in size):
            # At least one code: 8 becomes 16, and 500 becomes 496.
            near = " x ".join(str(max(factor, side - side % factor)) for side in size)
            width, height = size
            raise ConfigError(
                f"images of {width} x {height} pixels are no whole codes: with these weights one "
                f"code is {factor} x {factor}. Use multiples of {factor}, such as {near}"
            )
    own = getattr(geometry, "factor", factor)
    if own % factor:
        raise ConfigError(
            f"the geometry's factor is {own}, but one code is {factor} x {factor} pixels: use a "
            f"multiple, such as factor={factor}"
        )


def _codes(outcome: Outcome) -> NDArray[Any]:
    if isinstance(outcome, SampleError):
        raise outcome
    return np.asarray(outcome)


def _setting(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{variable} must be a number of at least 1, got {text!r}")
    return int(text)


class Launch(Protocol):
    """A batch on its way."""

    def wait(self) -> NDArray[Any]:
        """Return the codes."""


class Encoder(Protocol):
    """What encodes batches."""

    def launch(self, pixels: Any, count: int | None = None) -> Launch:
        """Begin to encode the first `count` images of a batch, by default all."""


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


class ImageFlow:
    """The threads, buffers and device behind the encoding; lives as long as its process."""

    def __init__(
        self,
        geometry: Geometry,
        encoder: Encoder,
        *,
        num_threads: int,
        batch_pixels: int,
        pin: bool,
        decoding: Decoding = DISPLAYED,
        allow_truncated: bool = False,
    ) -> None:
        self._geometry, self._encoder, self._decoding = geometry, encoder, decoding
        self._batch_pixels, self._pin = batch_pixels, pin
        self._allow_truncated = allow_truncated
        from shardmill.tokens.vq.encode import use_one_thread

        # There is a thread for each processor already: an operation must not start more.
        self._pool = ThreadPoolExecutor(num_threads, "decode", initializer=use_one_thread)
        self._free: dict[Size, list[Any]] = defaultdict(list)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def encode(self, images: Iterable[Content], on_first: OnFirst | None = None) -> list[Outcome]:
        """Return, in order, the codes of each image or why it has none.

        `on_first` gets number and pixels of the first good image before it is encoded.
        """
        return _Run(self, on_first).encode(images)

    def start(self, batch: Batch, content: Content, fit: ResizeCrop, size: Size) -> None:
        """Let a thread decode an image into the next place of a batch."""
        place = batch.pixels[len(batch.decoded)].numpy()
        decode = partial(
            decode_image, content, decoding=self._decoding, allow_truncated=self._allow_truncated
        )
        batch.decoded.append(self._pool.submit(_decode_into, place, decode, fit, size))

    def fit(self, content: Content) -> tuple[ResizeCrop, Size]:
        """Return how an image is brought to size, and the size that its header says."""
        size = image_size(content, self._decoding)
        return self._geometry.fit(*size), size

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
        # With many sizes, memory for those that do not come again would pile up.
        if sum(map(len, self._free.values())) >= MAX_FREE:
            self._free.clear()
        self._free[width, height].append(batch.pixels)

    def launch(self, batch: Batch) -> Launch:
        """Begin to encode a batch that is decoded."""
        return self._encoder.launch(batch.pixels, len(batch.numbers))


class _Run:
    """One call of `ImageFlow.encode`: what is gathered, decoded and launched at this moment."""

    def __init__(self, flow: ImageFlow, on_first: OnFirst | None) -> None:
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
            # A copy: the batch is used again while the comparison may still be under way.
            self._on_first(batch.numbers[good[0]], batch.pixels[good[0]].clone())
            self._on_first = None

    def _collect_next(self) -> None:
        batch, launch = self._launched.popleft()
        for number, codes in zip(batch.numbers, launch.wait()):
            if self._outcomes[number] is None:
                self._outcomes[number] = codes
        self._flow.give_back(batch)


def _decode_into(
    place: NDArray[np.uint8], decode: Callable[[], Pixels], fit: ResizeCrop, size: Size
) -> SampleError | None:
    try:
        pixels = decode()
        # The place in the batch was chosen by the header.
        if pixels.shape[:2] != size[::-1]:
            detail = f"{size} in its header, {pixels.shape[:2][::-1]} when decoded"
            return SampleError("broken image", detail)
        resize_crop(pixels, fit, place)
    except SampleError as error:
        return error
    return None


@dataclass(frozen=True, slots=True, eq=False)
class CodebookUse:
    """How often each code occurs in a folder."""

    counts: NDArray[np.int64]

    @property
    def num_dead(self) -> int:
        """Codes that never occur."""
        return int((self.counts == 0).sum())

    @property
    def perplexity(self) -> float:
        """The number of codes that, used equally often, would be as varied as these."""
        shares = self.counts[self.counts > 0] / max(1, self.counts.sum())
        return float(np.exp(-(shares * np.log(shares)).sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """An image as it was encoded, as its codes give it back, and how near the two are."""

    key: str
    medium: str
    original: Pixels
    decoded: Pixels
    psnr: float

    def side_by_side(self) -> Pixels:
        """Return both images in one, the original on the left."""
        return np.concatenate([self.original, self.decoded], axis=1)


def codebook_use(folder: Path) -> CodebookUse:
    """Return the use of the codebook in all shards of a finished folder of codes."""
    counts = np.zeros(0, np.int64)
    for shard in _shards(folder):
        found = np.bincount(shard.codes, minlength=shard.num_codes)
        counts = found if not counts.size else counts + found
    return CodebookUse(counts)


def reconstruct(folder: Path, keys: list[str], device: str = "cpu") -> Iterator[Reconstruction]:
    """Yield every image of the samples with these keys beside what its codes decode to."""
    check_packages(EncodeImages.needs)
    import torch

    spec = spec_of(folder)
    live = spec.tokenizer.load("fp32", device)
    shards = list(_shards(folder))
    with closing(open_samples(spec.input_dir)) as samples:
        for key in keys:
            shard, number = _find(shards, key, folder)
            media = _media_of(samples, shard, key)
            if media is None:
                raise ConfigError(f"{spec.input_dir} has no sample with the key {key!r} any more")
            for image in shard.images(number):
                original = _as_encoded(spec, media[image.medium])
                codes = torch.from_numpy(image.codes.astype(np.int64))[None].to(device)
                decoded = live.decode(codes)[0].cpu().numpy()
                yield Reconstruction(key, image.medium, original, decoded, psnr(original, decoded))


def _media_of(samples: SampleDataset, codes: CodeShard, key: str) -> Mapping[str, Content] | None:
    """Return the media of the sample that codes were made of, None if it is gone."""
    number = samples.find(key)
    if number is not None:
        return samples[number].media
    # Of a foreign tar, whose keys begin with its name here: "cc3m-0001/000042".
    name = Path(codes.arrays.path).stem
    for place, entry in enumerate(samples.entries):
        if entry.name == name and "tar" not in entry.files:
            before = foreign_name(samples.folder, name)
            for own, raw in samples.shard(place).in_order():
                if name_from_path(f"{before}/{own}") == key:
                    return foreign_image(own, raw)
    return None


def outliers(images: list[Reconstruction]) -> list[Reconstruction]:
    """Return those that came back far worse than the median image, worst first."""
    if not images:
        return []
    values = np.array([image.psnr for image in images])
    median = float(np.median(values))
    # Medians, because outliers would widen a mean and a standard deviation until they fit in. Half
    # a dB at least: of images that come back all alike, none is an outlier for a hair's breadth.
    spread = float(np.median(np.abs(values - median))) * MEDIAN_TO_DEVIATION
    limit = median - OUTLIER_DEVIATIONS * max(spread, 0.5)
    return sorted((p for p in images if p.psnr < limit), key=lambda image: image.psnr)


def spread_keys(folder: Path, count: int) -> list[str]:
    """Return up to `count` keys of samples with images, spread evenly over the folder."""
    keys = [
        shard.keys[number]
        for shard in _shards(folder)
        for number in np.flatnonzero(np.diff(shard.arrays["first"].astype(np.int64))).tolist()
    ]
    chosen = np.linspace(0, len(keys) - 1, min(count, len(keys))).round().astype(int)
    return [keys[number] for number in chosen]


def psnr(original: Pixels, decoded: Pixels) -> float:
    """Return the peak signal-to-noise ratio in dB, 100 for equal images."""
    error = float(np.mean((original.astype(np.float64) - decoded) ** 2))
    return MAX_PSNR if error == 0 else min(MAX_PSNR, 10 * float(np.log10(255**2 / error)))


def spec_of(folder: Path) -> EncodeImages:
    """Return the spec that made a folder of codes."""
    record = Ledger(folder).read_stage()
    spec: Any = None if record is None else from_plain(record.stage, where=f"{folder}/stage.json")
    if not isinstance(spec, EncodeImages):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    return spec


def describe_pixels(folder: Path) -> str | None:
    """Return how images became pixels in a folder of codes; None of another folder.

    "llamagen at 256 x 256" for a preset, else the settings that are not the default ones.
    """
    try:
        spec = spec_of(folder)
    except (ConfigError, FormatError, OSError):
        return None
    if spec.preset is not None:
        return f"{spec.preset} at {' x '.join(map(str, spec.geometry.sizes()[0]))}"
    scaling = getattr(spec.tokenizer, "scaling", "torchvision")
    said = [*_own_fields(spec.geometry), *_own_fields(spec.decoding)]
    said += [] if scaling == "torchvision" else [f"scaling={scaling}"]
    return ",".join([type(spec.geometry).__name__.lower(), *said])


def _own_fields(spec: Any) -> Iterator[str]:
    for field_ in fields(spec):
        value = getattr(spec, field_.name)
        if value != field_.default:
            yield f"{field_.name}={'null' if value is None else value}"


def _shards(folder: Path) -> Iterator[CodeShard]:
    for shard in open_manifest(folder).shards:
        if ROLE not in shard.files:
            raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
        yield open_codes(folder / shard.files[ROLE].path)


def _find(shards: list[CodeShard], key: str, folder: Path) -> tuple[CodeShard, int]:
    for shard in shards:
        number = shard.find(key)
        if number is not None:
            return shard, number
    raise ConfigError(f"{folder} has no codes of a sample with the key {key!r}")


def _as_encoded(spec: EncodeImages, content: bytes | memoryview) -> Pixels:
    pixels = decode_image(content, decoding=spec.decoding, allow_truncated=spec.allow_truncated)
    return resize_crop(pixels, spec.geometry.fit(pixels.shape[1], pixels.shape[0]))
