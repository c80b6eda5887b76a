"""Plans for NeMo's packed data set: packs as lists of sample numbers, from estimated lengths.

Token counts of NeMo's raw rows without tokenizing: text by its bytes, media by their sizes.

A row is `{"conversation": [{"role", "content": text or [{"type": "text" | "image" | "video",
...}]}]}`, with `_text_tokens` if someone counted, and `mm_inputs_meta` with `images_meta`
([height, width]) and `videos_meta` ([frames, height, width, fps, duration]), or a dict that has
`n_tokens`. A medium of unknown size counts as 500 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.lengths import length_table
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.pack.order import EpochOrder
from shardmill.pack.plan import plan_packs
from shardmill.tokens.visual.rule import fit_volume

BYTES_PER_TOKEN = 3
TOKENS_PER_MEDIUM = 500

Config = Mapping[str, Any]


def image_config(processor: Any) -> dict[str, Any] | None:
    """Return the sizes that an image processor uses, or None if there is none."""
    found = getattr(processor, "image_processor", None)
    if found is None:
        return None
    return _sizes(found, patch_size=14, min_pixels=56 * 56, max_pixels=14 * 14 * 4 * 1280)


def video_config(processor: Any) -> dict[str, Any] | None:
    """Return the sizes and frame rates that a video processor uses, or None if there is none.

    Qwen2-VL and Qwen2.5-VL limit the pixels of each frame (`per_frame`), Qwen3-VL of the video.
    """
    found = getattr(processor, "video_processor", None)
    if found is None:
        return None
    config = _sizes(
        found, patch_size=16, min_pixels=128 * 128, max_pixels=16 * 16 * 2 * 2 * 2 * 6144
    )
    for name, default in (("temporal_patch_size", 2), ("min_frames", 4), ("max_frames", 768)):
        config[name] = _value(found, name, default)
    config["fps"] = getattr(found, "fps", 2.0)
    config["per_frame"] = type(found).__name__.startswith("Qwen2")
    return config


def estimate_image_tokens(img_meta: Any, image_cfg: Config) -> int:
    """Return the tokens of an image from its [height, width]."""
    known = _counted(img_meta)
    if known is not None:
        return known
    try:
        tall, wide = fit_volume(1, 1, int(img_meta[0]), int(img_meta[1]), *_limits(image_cfg))
    except (SampleError, ZeroDivisionError):
        return TOKENS_PER_MEDIUM
    patch = image_cfg["patch_size"]
    return int((tall // patch) * (wide // patch) // image_cfg["merge_size"] ** 2)


def estimate_video_tokens(vid_meta: Any, video_cfg: Config) -> int:
    """Return the tokens of a video from its [total_frames, height, width, fps, duration]."""
    known = _counted(vid_meta)
    if known is not None:
        return known
    total, height, width, fps, duration = (*vid_meta, 0, 0, 0, 0, 0)[:5]
    step = int(video_cfg["temporal_patch_size"])
    num_frames = -(-_num_frames(int(total), fps, duration, video_cfg) // step) * step
    frames = 1 if video_cfg.get("per_frame") else num_frames
    try:
        tall, wide = fit_volume(frames, frames, int(height), int(width), *_limits(video_cfg))
    except (SampleError, ZeroDivisionError):
        return TOKENS_PER_MEDIUM
    patch = video_cfg["patch_size"]
    area = (tall // patch) * (wide // patch)
    return int((num_frames // step) * area // video_cfg["merge_size"] ** 2)


def estimate_sample_length(
    example: Mapping[str, Any], image_cfg: Config | None = None, video_cfg: Config | None = None
) -> tuple[int, int]:
    """Return all tokens of a row, and those of its media."""
    contents = list(_contents(example))
    text = example.get("_text_tokens")
    if text is None:
        num_bytes = sum(len(item.encode()) for item in contents if isinstance(item, str))
        text = num_bytes // BYTES_PER_TOKEN
    meta = example.get("mm_inputs_meta") or {}
    media = sum(
        _estimate_kind(contents, kind, meta.get(f"{kind}s_meta"), config, estimate)
        for kind, config, estimate in (
            ("image", image_cfg, estimate_image_tokens),
            ("video", video_cfg, estimate_video_tokens),
        )
    )
    return int(text) + media, media


def _estimate_kind(
    contents: list[Any],
    kind: str,
    metas: Sequence[Any] | None,
    config: Config | None,
    estimate: Callable[[Any, Config], int],
) -> int:
    # As many as the conversation shows; one without a size, or without a processor, counts 500.
    count = sum(bool(isinstance(i, Mapping) and i.get("type") == kind) for i in contents)
    known = list(metas or [])
    tokens = max(0, count - len(known)) * TOKENS_PER_MEDIUM
    for meta in known:
        counted = _counted(meta)
        if counted is None:
            counted = TOKENS_PER_MEDIUM if config is None else estimate(meta, config)
        tokens += counted
    return tokens


def _contents(example: Mapping[str, Any]) -> Iterator[Any]:
    # Yields texts as str and media as their dict.
    for turn in example.get("conversation") or []:
        content = turn.get("content") or []
        if isinstance(content, str):
            yield content
            continue
        for item in content:
            is_text = isinstance(item, Mapping) and item.get("type") == "text"
            yield str(item.get("text", "")) if is_text else item


def _counted(meta: Any) -> int | None:
    if not meta:
        return TOKENS_PER_MEDIUM
    if isinstance(meta, Mapping):
        return int(meta.get("n_tokens", TOKENS_PER_MEDIUM))
    return None


def _num_frames(total: int, fps: float, duration: float, config: Config) -> int:
    if total == 0 and fps > 0:
        total = int(duration * fps)
    wanted = config.get("fps")
    if wanted is None:
        # A processor without a frame rate takes every frame.
        return max(1, total)
    seconds = total / fps if fps > 0 else duration
    found = min(total, int(config["max_frames"]), max(1, int(seconds * wanted)))
    # A clip shorter than min_frames has no more frames than it has.
    return max(1, min(total, max(int(config["min_frames"]), found)))


def _limits(config: Config) -> tuple[int, int, int]:
    return int(config["factor"]), int(config["min_pixels"]), int(config["max_pixels"])


def _sizes(found: Any, *, patch_size: int, min_pixels: int, max_pixels: int) -> dict[str, Any]:
    patch, merge = _value(found, "patch_size", patch_size), _value(found, "merge_size", 2)
    size = getattr(found, "size", None) or {}
    limits = {}
    for name, edge, default in (
        ("min_pixels", "shortest_edge", min_pixels),
        ("max_pixels", "longest_edge", max_pixels),
    ):
        own = getattr(found, name, None)
        limits[name] = own or size.get(name) or size.get(edge) or default
    return {"patch_size": patch, "merge_size": merge, "factor": patch * merge, **limits}


def _value(found: Any, name: str, default: int) -> int:
    value = getattr(found, name, None)
    return default if value is None else int(value)


logger = logging.getLogger(__name__)


class PackBins(Sequence[list[int]]):
    """The packs of a plan as lists of sample numbers, made when asked."""

    def __init__(self, plan: PackPlan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self.plan[range(len(self))[place]].tolist()


def greedy_knapsack(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Return packs of sample numbers; samples longer than `max_length` are in none."""
    return greedy_knapsack_vt_balanced(lengths, max_length, np.zeros(len(lengths), np.int64))


def greedy_knapsack_vt_balanced(
    lengths: Sequence[int], max_length: int, visual_tokens: Sequence[int] | NDArray[Any]
) -> list[list[int]]:
    """Return packs in an order in which neighbours have like visual and attention cost."""
    tokens = np.maximum(1, np.asarray(lengths, np.int64))
    visual = np.asarray(visual_tokens, np.int64)
    plan = plan_lengths(tokens, visual, tokens > max_length, max_length, None, 1)
    return list(PackBins(ordered(plan)))


def estimate_lengths(
    dataset: Any, ds_raw: Any, processor: Any, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths after the shift, and of media; without raw rows, half a pack each."""
    if ds_raw is None:
        logger.warning("no ds_raw: every sample is taken for half a pack")
        size = len(dataset)
        return np.full(size, max(1, capacity // 2)), np.zeros(size, np.int64)
    configs = image_config(processor), video_config(processor)
    if processor is None:
        logger.warning("no processor: media of unknown rules count as 500 tokens each")
    rows = (ds_raw[number] for number in range(len(ds_raw)))
    counts = np.array([estimate_sample_length(row, *configs) for row in rows], np.int64)
    counts = counts.reshape(-1, 2)
    return np.maximum(1, counts[:, 0] - 1), counts[:, 1]


def plan_lengths(
    lengths: NDArray[np.int64],
    visual: NDArray[np.int64],
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
    order = EpochOrder(plan, seed=plan.spec.seed, epoch=0).all_packs()
    counts = np.diff(plan.starts)[order]
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(len(plan.members)) + np.repeat(plan.starts[order] - starts[:-1], counts)
    number = np.empty(len(plan), np.uint32)
    number[order] = np.arange(len(plan), dtype=np.uint32)
    return replace(
        plan, members=plan.members[places], starts=starts, balanced=number[plan.balanced]
    )
