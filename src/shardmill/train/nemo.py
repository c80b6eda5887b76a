"""Plans for NeMo's packed data set: packs as lists of sample numbers, from estimated lengths.

Rows are counted without tokenizing: text by its bytes, media by their sizes. A row is
`{"conversation": [{"role", "content": text or [{"type": "text" | "image" | "video", ...}]}]}`, with
`_text_tokens` if someone counted, and `mm_inputs_meta` with `images_meta` ([height, width]) and
`videos_meta` ([frames, height, width, fps, duration]), or a dict that has `n_tokens`. A medium of
unknown size counts as 500 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import PackPlan, PackSpec, length_table
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.tokens.count import estimate_medium, estimate_text, given_sizes
from shardmill.tokens.visual.qwen import Qwen3Images, Qwen3Videos, Qwen3VL
from shardmill.tokens.visual.rule import VisualRule, given, rule_of_processor

logger = logging.getLogger(__name__)

Config = Mapping[str, Any]
# NeMo's names for the settings of processors, and what it takes where there is none.
IMAGE_DEFAULTS = {"patch_size": 14, "min_pixels": 56 * 56, "max_pixels": 14 * 14 * 4 * 1280}
VIDEO_DEFAULTS = {"patch_size": 16, "min_pixels": 128 * 128, "max_pixels": 32 * 32 * 2 * 6144}
VIDEO_NAMES = ("temporal_patch_size", "min_frames", "max_frames")


def estimate_sample_length(
    row: Mapping[str, Any], rule: VisualRule | None = None
) -> tuple[int, int]:
    """Return all tokens of a row, and those of its media."""
    contents = list(_contents(row))
    meta = row.get("mm_inputs_meta") or {}
    kinds: list[str] = []
    for kind in ("image", "video"):
        shown = sum(bool(isinstance(i, Mapping) and i.get("type") == kind) for i in contents)
        # Rows that mark media inside their text show none, but list their sizes.
        kinds += [kind] * max(shown, len(meta.get(f"{kind}s_meta") or ()))
    media = sum(
        estimate_medium(kind, size, rule) for kind, size in zip(kinds, given_sizes(kinds, row))
    )
    return estimate_text((text for text in contents if isinstance(text, str)), row) + media, media


def rule_of_configs(image: Config | None, video: Config | None) -> VisualRule:
    """Return the rule that NeMo's settings of an image and a video processor describe.

    NeMo counts every model like Qwen3-VL, with the sizes of its own processor.
    """
    names = ("patch_size", "merge_size", "min_pixels", "max_pixels")
    images = Qwen3Images(**{**IMAGE_DEFAULTS, **given(image or {}, *names)})
    fps = 2.0 if video is None else video.get("fps", 2.0)
    videos = Qwen3Videos(
        **{**VIDEO_DEFAULTS, **given(video or {}, *names, *VIDEO_NAMES)},
        fps=None if fps is None else float(fps),
    )
    return Qwen3VL(images=images, videos=videos)


def rule_of(processor: Any) -> VisualRule:
    """Return the rule of a processor; one of an unknown family is counted as NeMo does."""
    try:
        return rule_of_processor(processor)
    except ConfigError as error:
        logger.warning("media are counted like those of Qwen3-VL: %s", error)
    parts = (getattr(processor, f"{kind}_processor", None) for kind in ("image", "video"))
    return rule_of_configs(*(None if part is None else _settings(part) for part in parts))


def _settings(processor: Any) -> dict[str, Any]:
    size = getattr(processor, "size", None) or {}
    edges = {
        "min_pixels": size.get("min_pixels") or size.get("shortest_edge"),
        "max_pixels": size.get("max_pixels") or size.get("longest_edge"),
    }
    names = ("patch_size", "merge_size", *edges, *VIDEO_NAMES)
    own = {name: getattr(processor, name, None) for name in names}
    return {
        **given(edges, *edges),
        **given(own, *own),
        "fps": getattr(processor, "fps", 2.0),
    }


def _contents(row: Mapping[str, Any]) -> Iterator[Any]:
    # Yields texts as str and media as their dict.
    for turn in row.get("conversation") or []:
        content = turn.get("content") or []
        if isinstance(content, str):
            yield content
            continue
        for item in content:
            is_text = isinstance(item, Mapping) and item.get("type") == "text"
            yield str(item.get("text", "")) if is_text else item


def estimate_lengths(
    dataset: Any, ds_raw: Any, processor: Any, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths after the shift, and of media; without raw rows, half a pack each."""
    if ds_raw is None:
        logger.warning("no ds_raw: every sample is taken for half a pack")
        size = len(dataset)
        return np.full(size, max(1, capacity // 2)), np.zeros(size, np.int64)
    if processor is None:
        logger.warning("no processor: media of unknown rules count as 500 tokens each")
    rule = None if processor is None else rule_of(processor)
    rows = (ds_raw[number] for number in range(len(ds_raw)))
    counts = np.array([estimate_sample_length(row, rule) for row in rows], np.int64)
    counts = counts.reshape(-1, 2)
    # A sample loses a place by the shift of its labels.
    return np.maximum(1, counts[:, 0] - 1), counts[:, 1]


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
