"""A pack says of each token what its document alone would say; a model sees no difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_qwen import END_ID, IMAGE_ID, START_ID, TEXT_IDS, tiny_model

from shardmill.errors import SampleError
from shardmill.model.overlong import cut_row
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, spans_of
from shardmill.pack.build import NO_LABEL, BuildSpec, Pack, build_pack
from shardmill.tokens.visual.qwen import Qwen25VL


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
