"""Lengths without a tokenizer: a third of the bytes, and 500 tokens for a medium of unknown size.

A marked fallback: a table of estimates is not exact, and the planner gives it headroom. Bytes of
UTF-8 rather than characters, so that a Chinese character counts as one token and an English text
as a third of its letters. A row's own `_text_tokens` is believed for its text, its
`mm_inputs_meta` for the sizes of its media where the index has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.model.sample import Document, MediaSize, Segment
from shardmill.tokens.visual.rule import VisualRule

BYTES_PER_TOKEN = 3
TOKENS_PER_MEDIUM = 500
TOKENS_PER_TURN = 5  # role, delimiters and newlines of a chat template
TOKENS_AROUND_MEDIUM = 2


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The columns of one sample in a length table."""

    num_tokens: int
    num_visual: int
    num_fixed: int


def estimate_sample(
    document: Document,
    extra: Mapping[str, Any],
    sizes: Sequence[MediaSize | None],
    rule: VisualRule | None = None,
) -> TokenCount:
    """Return an estimate; `sizes` are those of the document's media in order, None if unknown."""
    media = document.media()
    known = [size or given for size, given in zip(sizes, given_sizes(media, extra))]
    visual = sum(estimate_medium(segment, size, rule) for segment, size in zip(media, known))
    fixed = visual + TOKENS_AROUND_MEDIUM * len(media)
    text = estimate_text(document, extra)
    return TokenCount(max(1, text + fixed), visual, fixed)


def estimate_text(document: Document, extra: Mapping[str, Any]) -> int:
    """Return the tokens of all text with its template; the row's own count if it has one."""
    num_turns = len({(segment.role, segment.turn) for segment in document.segments if segment.role})
    counted = extra.get("_text_tokens")
    if isinstance(counted, int) and counted >= 0 and not isinstance(counted, bool):
        return counted + TOKENS_PER_TURN * num_turns
    num_bytes = sum(len(s.text.encode("utf-8", "replace")) for s in document.segments)
    return num_bytes // BYTES_PER_TOKEN + TOKENS_PER_TURN * num_turns


def estimate_medium(segment: Segment, size: MediaSize | int | None, rule: VisualRule | None) -> int:
    """Return the visual tokens of a medium: by the rule if its size is known, else 500."""
    if isinstance(size, int):
        return size
    if rule is None or size is None or segment.kind not in rule.placeholders():
        return TOKENS_PER_MEDIUM
    try:
        return rule.count(segment.kind, size).num_visual
    except SampleError:
        return TOKENS_PER_MEDIUM


def given_sizes(
    media: Sequence[Segment], extra: Mapping[str, Any]
) -> Iterator[MediaSize | int | None]:
    """Yield what the row's `mm_inputs_meta` says of each medium: a size, a count, or nothing."""
    meta = extra.get("mm_inputs_meta")
    lists = {
        kind: iter(found if isinstance(found, list) else ())
        for kind in ("image", "video")
        for found in [meta.get(f"{kind}s_meta") if isinstance(meta, dict) else None]
    }
    for segment in media:
        entry = next(lists.get(segment.kind, iter(())), None)
        yield _size_of_entry(segment.kind, entry)


def _size_of_entry(kind: str, entry: Any) -> MediaSize | int | None:
    # [h, w], [frames, h, w, fps, duration] or {"n_tokens": n}, as people write them
    if isinstance(entry, dict):
        count = entry.get("n_tokens")
        return count if isinstance(count, int) and count > 0 else None
    wanted = 2 if kind == "image" else 5
    if not isinstance(entry, list) or len(entry) != wanted:
        return None
    if not all(isinstance(value, int | float) and 0 <= value < 1e9 for value in entry):
        return None
    if kind == "image":
        return MediaSize(height=int(entry[0]), width=int(entry[1]))
    num_frames, height, width, fps, duration_s = entry
    return MediaSize(
        height=int(height),
        width=int(width),
        num_frames=int(num_frames) or int(duration_s * fps),
        fps=float(fps) or (num_frames / duration_s if duration_s else 0.0),
        duration_s=float(duration_s),
    )
