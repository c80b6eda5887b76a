"""A pack is its documents in place, each token once, the same from a plan and from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_qwen import END_ID, IMAGE_ID, START_ID, TEXT_IDS, tiny_model
from token_folder import write_token_folder

from shardmill.errors import ConfigError, SampleError
from shardmill.model.tokenrow import MediaSpan, TokenRow, cut_row, mask_of, spans_of
from shardmill.packing.build import (
    NO_LABEL,
    BuildSpec,
    Pack,
    as_pack,
    build_pack,
    lay_out,
    num_stored_packs,
    stored_rows,
)
from shardmill.shards.tokens.shard import open_tokens
from shardmill.tokens.visual.qwen import Qwen25VL


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    alignment=st.integers(1, 5),
    spare=st.none() | st.integers(0, 7),
)
def test_every_place_is_what_counting_says(
    lengths: list[int], alignment: int, spare: int | None
) -> None:
    index, positions, values = [], [], []
    for number, length in enumerate(lengths, 1):
        padded = -(-length // alignment) * alignment
        index += [number] * padded
        positions += range(padded)
        values += [number] * length + [-7] * (padded - length)
    size = None if spare is None else len(index) + spare
    tail = [0] * (spare or 0)
    layout = lay_out(lengths, alignment=alignment, size=size)
    assert layout.index_mask().tolist() == index + tail
    assert layout.position_ids().tolist() == positions + tail
    parts = [np.full(length, number) for number, length in enumerate(lengths, 1)]
    placed = layout.place(parts, -7, np.int64)
    assert placed.tolist() == values + [-7] * len(tail)
    both = layout.place([np.stack([part, 2 * part]) for part in parts] or [], -7, np.int64)
    if lengths:
        assert both[0].tolist() == placed.tolist()
    assert layout.cu_seqlens().tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert layout.cu_seqlens_padded()[-1] == len(index)
    assert layout.max_seqlen == max((index.count(n) for n in set(index)), default=0)


def test_block_causal_mask_sees_only_its_own_past() -> None:
    rows = [TokenRow(key="k", ids=np.array([1, 2])) for _ in range(2)]
    mask = build_pack(rows, BuildSpec(size=5)).block_causal_mask()
    assert mask.shape == (1, 5, 5)
    seen = {(q, k) for q, k in zip(*np.nonzero(mask[0]))}
    assert seen == {(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (3, 3)}


def test_documents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="take 12 tokens, more than the 11"):
        lay_out([5, 6], alignment=6, size=11)


@st.composite
def rows(draw: st.DrawFn) -> TokenRow:
    pieces = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=6))
    length, media = 0, []
    for is_medium, size in pieces:
        if is_medium:
            span = MediaSpan(
                name="jpg",
                kind="image",
                position=length + 1,
                num_tokens=4 * size,
                grid=(1, 4, 4 * size),
                before=1,
                after=1,
            )
            media.append(span)
        length += 4 * size + 2 if is_medium else size
    loss = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), np.bool_)
    ids = np.arange(length) + draw(st.integers(1, 1000))
    return TokenRow(key="k", ids=ids.astype(np.int32), loss=spans_of(loss), media=tuple(media))


def naive_labels(row: TokenRow) -> list[int]:
    loss = mask_of(row.loss, len(row.ids))
    own = [int(i) if yes else NO_LABEL for i, yes in zip(row.ids, loss)]
    return [*own[1:], NO_LABEL]


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=5), st.integers(1, 4), st.none() | st.integers(0, 9))
def test_pack_holds_each_document_as_it_is_alone(
    documents: list[TokenRow], alignment: int, spare: int | None
) -> None:
    spec = BuildSpec(alignment=alignment, pad_id=7, positions=Qwen25VL())
    size = build_pack(documents, spec).layout.size
    if spare is not None:
        spec = BuildSpec(alignment=alignment, pad_id=7, positions=Qwen25VL(), size=size + spare)
    pack = build_pack(documents, spec, samples=range(40, 40 + len(documents)))
    labels, sample_ids = pack.labels(), pack.sample_ids()
    covered = np.zeros(len(pack.input_ids), np.bool_)
    for number, (row, start) in enumerate(zip(documents, pack.layout.starts)):
        here = slice(int(start), int(start) + len(row.ids))
        alone = build_pack([row], BuildSpec(positions=Qwen25VL()))
        covered[here] = True
        assert pack.input_ids[here].tolist() == row.ids.tolist()
        assert labels[here].tolist() == naive_labels(row)
        assert pack.loss_mask[here].tolist() == mask_of(row.loss, len(row.ids)).tolist()
        assert pack.position_ids[:, here].tolist() == alone.position_ids.tolist()
        assert set(sample_ids[here]) == {40 + number}
        for medium, span in zip([m for m in pack.media if m.document == number], row.media):
            assert medium.span.position == span.position + start
            assert set(pack.modality[here][span.position : span.position + span.num_tokens]) == {1}
    assert set(pack.input_ids[~covered]) <= {7}
    assert set(labels[~covered]) <= {NO_LABEL}
    assert pack.grid_thw("image").shape == (sum(len(row.media) for row in documents), 3)
    assert pack.grid_thw("video").shape == (0, 3)


def test_positions_without_media_rule_restart() -> None:
    documents = [TokenRow(key="a", ids=np.arange(3)), TokenRow(key="b", ids=np.arange(2))]
    assert build_pack(documents, BuildSpec()).position_ids.tolist() == [0, 1, 2, 0, 1]


def test_positions_of_the_model_itself_are_taken() -> None:
    documents = [TokenRow(key="a", ids=np.arange(3))]
    given_positions = np.array([[5, 6, 7], [1, 1, 1], [2, 2, 9]])
    pack = build_pack(documents, BuildSpec(alignment=4), positions=[given_positions])
    assert pack.position_ids.tolist() == [[5, 6, 7, 10], [1, 1, 1, 10], [2, 2, 9, 10]]


@settings(max_examples=60, deadline=None)
@given(rows(), st.integers(0, 60))
def test_cut_row_keeps_its_media(row: TokenRow, num_tokens: int) -> None:
    if num_tokens > len(row.ids):
        with pytest.raises(SampleError, match="shorter than planned"):
            cut_row(row, num_tokens)
    elif num_tokens < row.num_fixed:
        with pytest.raises(SampleError, match="too long"):
            cut_row(row, num_tokens)
    else:
        cut = cut_row(row, num_tokens)
        assert len(cut.ids) == num_tokens
        for before, after in zip(row.media, cut.media):
            here = slice(after.start, after.end)
            assert cut.ids[here].tolist() == row.ids[before.start : before.end].tolist()


def test_pack_of_nothing_has_the_shapes_of_any_other() -> None:
    pack = build_pack([], BuildSpec(size=8, positions=Qwen25VL()))
    assert pack.position_ids.shape == (3, 8)
    assert pack.labels().tolist() == [NO_LABEL] * 8
    assert not pack.block_causal_mask().any()


def image_row(rng: np.random.Generator, num_text: int, grid: tuple[int, int, int]) -> TokenRow:
    count = grid[1] * grid[2] // 4
    text = rng.integers(0, TEXT_IDS, num_text)
    ids = [*text[:3], START_ID, *[IMAGE_ID] * count, END_ID, *text[3:]]
    span = MediaSpan(
        name="jpg", kind="image", position=4, num_tokens=count, grid=grid, before=1, after=1
    )
    loss = np.zeros(len(ids), np.bool_)
    loss[4 + count + 1 :] = True
    return TokenRow(key="k", ids=np.array(ids), loss=spans_of(loss), media=(span,))


def losses(model: Any, pack: Pack, pixels: torch.Tensor, attention: str) -> np.ndarray:
    mask = torch.from_numpy(pack.block_causal_mask())[None]
    if attention == "eager":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = model(
            input_ids=torch.from_numpy(pack.input_ids)[None],
            attention_mask=mask,
            position_ids=torch.from_numpy(pack.position_ids)[:, None],
            pixel_values=pixels,
            image_grid_thw=torch.from_numpy(pack.grid_thw("image")),
            mm_token_type_ids=torch.from_numpy(pack.modality.astype(np.int32))[None],
        ).logits[0]
    labels = torch.from_numpy(pack.labels())
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    return each.numpy()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("alignment", [1, 8])
def test_model_gives_the_same_loss_packed_and_alone(attention: str, alignment: int) -> None:
    rng = np.random.default_rng(1)
    grids = [(1, 4, 4), (1, 4, 8), (1, 8, 4)]
    documents = [image_row(rng, 9 + 3 * n, grid) for n, grid in enumerate(grids)]
    pixels = [torch.randn(g[1] * g[2], 3 * 2 * 2 * 2) for g in grids]
    model = tiny_model("qwen2_5_vl", attention)
    spec = BuildSpec(positions=Qwen25VL(), alignment=alignment)
    packed = losses(model, build_pack(documents, spec), torch.cat(pixels), attention)
    starts = build_pack(documents, spec).layout.starts
    for row, image, start in zip(documents, pixels, starts):
        alone = losses(model, build_pack([row], BuildSpec(positions=Qwen25VL())), image, attention)
        assert np.count_nonzero(alone) == row.num_loss
        np.testing.assert_allclose(packed[start : start + len(alone)], alone, atol=2e-5)


@pytest.mark.parametrize("alignment", [1, 8])
def test_flash_attention_finds_the_same_documents_in_the_positions(alignment: int) -> None:
    from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

    documents = [TokenRow(key="k", ids=np.arange(length)) for length in (5, 1, 17, 9)]
    pack = build_pack(documents, BuildSpec(alignment=alignment))
    positions = torch.from_numpy(pack.position_ids)[None]
    (bounds, _), (longest, _) = prepare_fa_kwargs_from_position_ids(positions)
    assert bounds.tolist() == pack.layout.cu_seqlens_padded().tolist()
    assert int(longest) == pack.layout.max_seqlen


def test_packs_keep_their_bounds(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(5)]
    folder = write_token_folder(tmp_path / "packs", [[*as_pack(rows[:2]), *as_pack(rows[2:])]])
    shard = open_tokens(folder).shard(0)
    assert num_stored_packs(shard) == 2
    assert [row.key for row in stored_rows(shard, 1)] == ["k2", "k3", "k4"]
    assert not any(row.continues for row in stored_rows(shard, 0))
    with pytest.raises(IndexError):
        stored_rows(shard, 2)
