"""Lengths of NeMo's raw rows, and packs of them as lists of sample numbers.

Rows are counted without tokenizing. A row is
`{"conversation": [{"role", "content": text or [{"type": "text" | "image" | "video", ...}]}]}`, with
`_text_tokens` if someone counted, and `mm_inputs_meta` with `images_meta` ([height, width]) and
`videos_meta` ([frames, height, width, fps, duration]), or a dict that has `n_tokens`.

All rows are read once, by `_rows.c`, into columns; what comes after is arithmetic on arrays. There
are two ways to count. `estimate` takes a third of the bytes of the text, the rule of the processor
for media of known size and 500 tokens for others. `estimate_as_nemo` has NeMo's own numbers: a
third of the characters, and the sizes of Qwen3-VL for every model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import PackPlan, PackSpec, length_table
from shardmill.packing.loops import load_loops
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.tokens.count import BYTES_PER_TOKEN, TOKENS_PER_MEDIUM
from shardmill.tokens.visual.qwen import Qwen3Images, Qwen3Videos, Qwen3VL
from shardmill.tokens.visual.rule import VisualRule, given, rule_of_processor

logger = logging.getLogger(__name__)

Config: TypeAlias = Mapping[str, Any]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

NONE = np.iinfo(np.int64).min
# What an entry of mm_inputs_meta is: null, sizes, a count of tokens, or something else.
MISSING, SIZE, COUNT, UNUSABLE = range(4)
MAX_NUMBER = 9e15  # whole numbers below this are exact as floats
MAX_SIDE = 1e9
NUM_SIZES = {"image": 2, "video": 5}
# NeMo's settings where a processor has none.
IMAGE_DEFAULTS = {"patch_size": 14, "min_pixels": 56 * 56, "max_pixels": 14 * 14 * 4 * 1280}
VIDEO_DEFAULTS = {
    "patch_size": 16,
    "min_pixels": 128 * 128,
    "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
    "temporal_patch_size": 2,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 768,
}


@dataclass(frozen=True, slots=True)
class RawRows:
    """What raw rows say of their lengths: columns of rows, and the entries of their media.

    Entries are rows of six numbers: what it is, and then its sizes or its count.
    """

    num_chars: Ints
    num_bytes: Ints
    text_tokens: Ints  # NONE where nobody counted
    num_images: Ints
    num_videos: Ints
    has_meta: NDArray[np.bool_]
    image_entries: Ints  # how many each row has
    video_entries: Ints
    images: Floats
    videos: Floats

    def __len__(self) -> int:
        return len(self.num_chars)

    def entries(self, kind: str) -> tuple[Ints, Floats]:
        """Return the row of each entry of this kind of media, and the entries."""
        counts = self.image_entries if kind == "image" else self.video_entries
        return np.repeat(np.arange(len(self)), counts), getattr(self, f"{kind}s")


def read_rows(rows: Iterable[Any]) -> RawRows:
    """Return the columns of rows; what is not as the form wants counts as absent."""
    try:
        scan = import_module("shardmill.train.nemo._rows").scan
    except ImportError:
        scan = scan_plainly
    found, images, videos = scan(rows)
    columns = np.frombuffer(found, np.int64).reshape(-1, 8).T
    entries = [np.frombuffer(made, np.float64).reshape(-1, 6) for made in (images, videos)]
    return RawRows(
        num_chars=columns[0],
        num_bytes=columns[1],
        text_tokens=columns[2],
        num_images=columns[3],
        num_videos=columns[4],
        has_meta=columns[5].astype(np.bool_),
        image_entries=columns[6],
        video_entries=columns[7],
        images=entries[0],
        videos=entries[1],
    )


def scan_plainly(rows: Iterable[Any]) -> tuple[bytes, bytes, bytes]:
    """Return what `_rows.scan` does, where that was not built."""
    found: list[list[int]] = []
    entries: dict[str, list[list[float]]] = {"image": [], "video": []}
    for row in rows:
        if not hasattr(row, "keys"):
            raise TypeError(f"a raw row must be a mapping, got {type(row).__name__}")
        row = row if isinstance(row, dict) else dict(row)
        contents = list(_contents(row.get("conversation")))
        texts = [text for text in contents if isinstance(text, str)]
        meta = row.get("mm_inputs_meta")
        listed = {
            kind: _listed(meta.get(f"{kind}s_meta")) if isinstance(meta, dict) else ()
            for kind in entries
        }
        for kind, several in listed.items():
            entries[kind] += [_entry(one, NUM_SIZES[kind]) for one in several]
        counted = _number(row.get("_text_tokens"))
        found.append(
            [
                sum(map(len, texts)),
                sum(len(text.encode("utf-8", "replace")) for text in texts),
                NONE if counted is None else int(counted),
                *(sum(item == {"type": kind} for item in contents) for kind in entries),
                isinstance(meta, dict),
                *map(len, listed.values()),
            ]
        )
    images, videos = (np.array(entries[kind], np.float64).tobytes() for kind in entries)
    return np.array(found, np.int64).tobytes(), images, videos


def _contents(turns: Any) -> Iterator[Any]:
    # Yields texts as str, and media as a dict of their type alone.
    for turn in _listed(turns):
        content = turn.get("content") if isinstance(turn, dict) else None
        if isinstance(content, str):
            yield content
        for item in content if isinstance(content, list) else ():
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "text":
                yield item.get("text")
            elif isinstance(kind, str):
                yield {"type": kind}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not abs(value) < MAX_NUMBER:
        return None
    return float(value)


def _entry(given: Any, num: int) -> list[float]:
    found: list[float | None] = []
    kind = UNUSABLE
    if given is None:
        kind = MISSING
    elif isinstance(given, dict):
        count = given.get("n_tokens")
        kind, found = COUNT, [_number(count) if isinstance(count, int) else None]
    elif isinstance(given, list | tuple) and len(given) >= num:
        kind, found = SIZE, [_number(value) for value in given[:num]]
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        kind, values = UNUSABLE, []
    return [float(kind), *values, *[0.0] * (5 - len(values))]


def estimate(rows: RawRows, rule: VisualRule | None) -> tuple[Ints, Ints]:
    """Return all tokens of each row, and those of its media, by the rule of its model."""
    media = np.zeros(len(rows), np.int64)
    for kind, shown in (("image", rows.num_images), ("video", rows.num_videos)):
        row_of, entries = rows.entries(kind)
        listed = np.bincount(row_of, minlength=len(rows))
        # Rows that mark media inside their text show none, but list their sizes.
        media += TOKENS_PER_MEDIUM * np.maximum(shown - listed, 0)
        media += _sum(row_of, _count_entries(kind, entries, rule), len(rows))
    text = np.where(rows.text_tokens >= 0, rows.text_tokens, rows.num_bytes // BYTES_PER_TOKEN)
    return text + media, media


def _count_entries(kind: str, entries: Floats, rule: VisualRule | None) -> Ints:
    tokens = np.full(len(entries), TOKENS_PER_MEDIUM, np.int64)
    is_count = (entries[:, 0] == COUNT) & (entries[:, 1] > 0)
    tokens[is_count] = entries[is_count, 1]
    sizes = entries[:, 1 : 1 + NUM_SIZES[kind]]
    known = (entries[:, 0] == SIZE) & ((sizes >= 0) & (sizes < MAX_SIDE)).all(axis=1)
    if rule is not None and kind in rule.placeholders() and known.any():
        sizes = sizes[known]
        if kind == "video":
            frames, height, width, fps, seconds = sizes.T
            frames = np.where(np.floor(frames) > 0, frames, seconds * fps)
            rate = np.divide(sizes[:, 0], seconds, out=np.zeros(len(sizes)), where=seconds > 0)
            sizes = np.stack([height, width, frames, np.where(fps > 0, fps, rate)], axis=1)
            sizes[:, :3] = np.floor(sizes[:, :3])
        else:
            sizes = np.floor(sizes)
        found = rule.count_many(kind, sizes)
        tokens[known] = np.where(found < 0, TOKENS_PER_MEDIUM, found)
    return tokens


def estimate_as_nemo(
    rows: RawRows, image: Config | None, video: Config | None
) -> tuple[Ints, Ints]:
    """Return NeMo's estimates: all tokens of each row, and those of its media."""
    counted = rows.text_tokens != NONE
    text = np.where(counted, rows.text_tokens, rows.num_chars // BYTES_PER_TOKEN)
    media = TOKENS_PER_MEDIUM * (rows.num_images + rows.num_videos)
    if image is not None or video is not None:
        media = np.where(rows.has_meta, 0, media)
        for kind, config in (("image", image), ("video", video)):
            if config is not None:
                row_of, entries = rows.entries(kind)
                tokens = np.zeros(len(entries), np.int64)
                known = entries[:, 0] == SIZE
                count = nemo_image_tokens if kind == "image" else nemo_video_tokens
                tokens[known] = count(entries[known, 1:], config)
                media += _sum(row_of, tokens, len(rows))
    return text + media, media


def nemo_image_tokens(sizes: Floats, config: Config) -> Ints:
    """Return NeMo's tokens of images from rows of height and width."""
    height, width = np.trunc(sizes[:, 0]), np.trunc(sizes[:, 1])
    tall, wide = _fit(1.0, 1.0, height, width, config)
    return _patches(1, tall, wide, config)


def nemo_video_tokens(sizes: Floats, config: Config) -> Ints:
    """Return NeMo's tokens of videos from rows of frames, height, width, rate and seconds."""
    total, height, width = np.trunc(sizes[:, :3]).T
    rate, seconds = sizes[:, 3], sizes[:, 4]
    wanted_rate = 2.0 if config["fps"] is None else config["fps"]
    total = np.where((total == 0) & (rate > 0), np.trunc(seconds * rate), total)
    safe = np.where(rate > 0, rate, 1.0)
    wanted = np.where(rate > 0, total / safe * wanted_rate, seconds * wanted_rate)
    frames = np.minimum(np.minimum(total, config["max_frames"]), np.maximum(1, np.trunc(wanted)))
    frames = np.maximum(config["min_frames"], frames)
    step = config["temporal_patch_size"]
    frames = np.ceil(frames / step) * step
    tall, wide = _fit(frames, frames, height, width, config)
    return _patches(frames // step, tall, wide, config)


def _fit(depth: Any, frames: Any, height: Floats, width: Floats, config: Config) -> Any:
    # The sizes nearest to the original in multiples of the factor, within the limits of pixels.
    factor = config["factor"]
    least, most = config["min_pixels"], config["max_pixels"]
    tall, wide = np.rint(height / factor) * factor, np.rint(width / factor) * factor
    with np.errstate(divide="ignore", invalid="ignore"):
        shrink = np.sqrt(frames * height * width / most)
        grow = np.sqrt(least / (frames * height * width))
        small = [
            np.maximum(factor, np.floor(s / shrink / factor) * factor) for s in (height, width)
        ]
        large = [np.ceil(side * grow / factor) * factor for side in (height, width)]
    area = depth * tall * wide
    choices = zip((tall, wide), small, large)
    return [np.where(area > most, s, np.where(area < least, b, a)) for a, s, b in choices]


def _patches(depth: Any, tall: Floats, wide: Floats, config: Config) -> Ints:
    patch, merge = config["patch_size"], config["merge_size"]
    found = depth * (tall // patch) * (wide // patch) // merge**2
    return np.asarray(np.nan_to_num(found, posinf=0, neginf=0), np.int64)


def _sum(row_of: Ints, tokens: Ints, num_rows: int) -> Ints:
    # Floats are exact here: a row has fewer than 2^53 tokens.
    return np.bincount(row_of, weights=tokens, minlength=num_rows).astype(np.int64)


def nemo_config(processor: Any, kind: str) -> dict[str, Any] | None:
    """Return the settings that NeMo reads from a processor's part for images or for videos."""
    part = getattr(processor, f"{kind}_processor", None)
    if part is None:
        return None
    size = getattr(part, "size", None) or {}
    found = {"merge_size": 2, **(IMAGE_DEFAULTS if kind == "image" else VIDEO_DEFAULTS)}
    edges = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
    for name in found:
        value = getattr(part, name, None)
        if value is None and name in edges:
            value = size.get(name) or size.get(edges[name])
        if value is not None:
            found[name] = value
    return {**found, "factor": found["patch_size"] * found["merge_size"]}


def rule_of(processor: Any) -> VisualRule | None:
    """Return the rule of a processor, None for one without media.

    One of a family that is not known is counted like Qwen3-VL with its own sizes, as NeMo counts
    all, if it has patches that are merged; else its media count as 500 tokens.
    """
    try:
        return rule_of_processor(processor)
    except ConfigError as error:
        image, video = (nemo_config(processor, kind) for kind in ("image", "video"))
        part = getattr(processor, "image_processor", None) or getattr(
            processor, "video_processor", None
        )
        if getattr(part, "merge_size", None) is None:
            logger.warning("media are counted as 500 tokens each: %s", error)
            return None
        logger.warning("media are counted like those of Qwen3-VL: %s", error)
    names = ("patch_size", "merge_size", "min_pixels", "max_pixels")
    more = ("temporal_patch_size", "min_frames", "max_frames", "fps")
    return Qwen3VL(
        images=Qwen3Images(**given(image or {}, *names)),
        videos=Qwen3Videos(**given(video or {}, *names, *more)),
    )


class PackBins(Sequence[list[int]]):
    """The packs of a plan as lists of sample numbers of a data set, made when asked."""

    def __init__(self, plan: PackPlan, dataset: Any = None) -> None:
        self.plan, self.dataset = plan, dataset

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self.plan[range(len(self))[place]].tolist()

    def are_of(self, dataset: Any) -> bool:
        """Whether a data set is known to have the rows that were planned, without reading them.

        It is the very one, or has its fingerprint, as data sets of Hugging Face have.
        """
        mine, other = (getattr(data, "_fingerprint", None) for data in (self.dataset, dataset))
        return dataset is self.dataset or (mine is not None and mine == other)


def greedy_knapsack(lengths: Sequence[int] | Ints, max_length: int) -> list[list[int]]:
    """Return NeMo's packs: longest samples first, each into the least filled pack.

    Samples longer than `max_length` are in no pack.
    """
    tokens = np.asarray(lengths, np.int64)
    order = np.argsort(-tokens, kind="stable")
    order = order[tokens[order] <= max_length]
    pack_of = load_loops().worst_fit(tokens[order], max_length)
    # By pack, and inside a pack in the order in which samples came.
    members = order[np.argsort(pack_of, kind="stable")].tolist()
    ends = np.cumsum(np.bincount(pack_of)).tolist() if len(pack_of) else []
    return [members[start:end] for start, end in zip([0, *ends], ends)]


def greedy_knapsack_vt_balanced(
    lengths: Sequence[int] | Ints, max_length: int, visual_tokens: Sequence[int] | Ints
) -> list[list[int]]:
    """Return NeMo's packs sorted by visual tokens, so that neighbours have equally many."""
    packs = greedy_knapsack(lengths, max_length)
    if not packs:
        return []
    visual = np.asarray(visual_tokens, np.int64)
    members = np.fromiter((number for pack in packs for number in pack), np.int64)
    starts = np.cumsum([0] + [len(pack) for pack in packs[:-1]])
    order = np.argsort(np.add.reduceat(visual[members], starts), kind="stable")
    return [packs[number] for number in order.tolist()]


def plan_lengths(
    lengths: Ints,
    visual: Ints,
    left_out: NDArray[np.bool_],
    capacity: int,
    max_packs: int | None,
    alignment: int,
) -> PackPlan:
    """Return the plan of these lengths, without the samples that are left out."""
    table = length_table(
        lengths,
        num_visual=np.minimum(visual, lengths),
        reject=left_out,
        reject_reasons=["longer than a pack"],
    )
    return plan_packs(table, PackSpec(capacity=capacity, alignment=alignment, max_packs=max_packs))


def ordered(plan: PackPlan) -> PackPlan:
    """Return the same packs, numbered in the order of an epoch: alike, and no curriculum."""
    # Packs [a b] [c] [d e] in the order 2 0 1 become [d e] [a b] [c]: `places` says where each
    # member was, here 3 4 0 1 2, and `number` what each pack is called now, here 1 2 0.
    order = EpochOrder(plan, seed=plan.spec.seed, epoch=0).all_packs()
    counts = np.diff(plan.starts)[order]
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(len(plan.members)) + np.repeat(plan.starts[order] - starts[:-1], counts)
    number = np.empty(len(plan), np.uint32)
    number[order] = np.arange(len(plan), dtype=np.uint32)
    return replace(
        plan, members=plan.members[places], starts=starts, balanced=number[plan.balanced]
    )
