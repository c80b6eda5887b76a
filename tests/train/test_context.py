"""Rows that ranks share, and ranks that share a step: the numbers of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from
from packed_folder import Made
from parallel_ranks import (
    LENGTHS,
    SEED,
    Result,
    checked,
    documents,
    megatron_part,
    one_by_one,
    rank_without_images,
    ranks_of_unlike_packs,
    run_ranks,
    split,
    ulysses,
)
from tiny_models import FAMILIES

import shardmill as sm
from shardmill.errors import ConfigError
from shardmill.train.context import SPLITS


def check_equal(found: list[Result], expected: Result) -> None:
    for result in found:
        assert result.keys() == expected.keys()
        for name, value in expected.items():
            assert (result[name] - value).norm() <= 1e-5 * value.norm() + 1e-6, name


def shares(kind: str, world: int, padded: Any) -> list[np.ndarray]:
    return [sm.ContextSplit(kind, rank, world).places(np.array(padded)) for rank in range(world)]


@given(
    kind=sampled_from(list(SPLITS)),
    world=integers(1, 5),
    parts=lists(integers(0, 7), min_size=1, max_size=6),
)
def test_each_place_is_on_one_rank(kind: str, world: int, parts: list[int]) -> None:
    found = shares(kind, world, [2 * world * part for part in parts])
    assert len({len(own) for own in found}) == 1
    assert sorted(np.concatenate(found).tolist()) == list(range(2 * world * sum(parts)))
    assert all((np.diff(own) > 0).all() for own in found)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_order_of_torch(world: int) -> None:
    from torch.distributed.tensor.experimental._context_parallel import _load_balancer

    lengths = [2 * world * n for n in (3, 1, 5)]
    balancer = _load_balancer._HeadTailLoadBalancer(sum(lengths), world, "cpu")
    order = balancer._generate_indices()[0]
    assert np.concatenate(shares("zigzag", world, lengths)).tolist() == order.tolist()
    # It orders the ranks of each document by themselves: those of document 0, then of document 1.
    balancer = _load_balancer._PerDocumentHeadTailLoadBalancer([lengths], world, "cpu")
    by_document = balancer._generate_indices()[0].split(lengths)
    for rank, own in enumerate(shares("zigzag-thd", world, lengths)):
        assert own.tolist() == torch.cat([d.chunk(world)[rank] for d in by_document]).tolist()


@pytest.mark.parametrize("world", [2, 4])
def test_the_order_of_megatron(world: int) -> None:
    utils = pytest.importorskip("megatron.core.utils", reason="megatron-core is not installed")
    if not hasattr(utils, "get_batch_on_this_cp_rank"):
        pytest.skip("megatron-core is too old")
    found = run_ranks(world, megatron_part, 8 * world)
    assert [part.tolist() for part in found] == [
        own.tolist() for own in shares("zigzag", world, [8 * world])
    ]


def test_labels_are_shifted_before_the_row_is_cut() -> None:
    whole = sm.Collate("torch", multiple_of=4)([documents()])
    parts = [
        sm.Collate("torch", context=sm.ContextSplit("ring", r, 4))([documents()]) for r in range(4)
    ]
    for name in ("input_ids", "labels", "position_ids", "document_ids"):
        assert torch.equal(torch.cat([part[name] for part in parts], 1), whole[name])
    assert all(torch.equal(part["cu_seqlens"], whole["cu_seqlens"]) for part in parts)
    # The last place of a part predicts the first of the next.
    ids, labels = parts[1]["input_ids"][0], parts[0]["labels"][0]
    assert labels[-1] in (ids[0], -100)
    hf = sm.Collate("transformers", context=sm.ContextSplit("ulysses", 1, 4))([documents()])
    assert torch.equal(hf["shift_labels"], parts[1]["labels"])
    assert sum(int(sm.num_items(part)) for part in parts) == sm.num_items(whole)


@pytest.mark.parametrize("kind", ["ring", "zigzag", "ring-thd", "zigzag-thd"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_split_row_trains_as_documents_alone(kind: str, world: int) -> None:
    expected = one_by_one("llama", FAMILIES["llama"].rows(SEED, LENGTHS))
    check_equal(run_ranks(world, split, kind), expected)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("world", [2, 4])
def test_our_attention_over_ranks(name: str, world: int) -> None:
    # Four ranks share four heads with two of keys; the window of Mistral reaches over borders.
    expected = one_by_one(name, FAMILIES[name].rows(SEED, LENGTHS))
    check_equal(run_ranks(world, ulysses, name), expected)


def test_a_model_that_sees_only_its_part_is_found() -> None:
    assert run_ranks(2, checked, None) == ["right"] * 2
    for told in run_ranks(2, checked, "sdpa"):
        assert "does not see its beginning on another rank" in told
        assert "sm.attention(group)" in told


def test_ranks_with_unlike_numbers_of_labels() -> None:
    expected = one_by_one("llama", FAMILIES["llama"].rows(SEED, LENGTHS))
    check_equal([ranks_of_unlike_packs()], expected)
    check_equal(run_ranks(2, ranks_of_unlike_packs), expected)


def test_a_rank_without_images() -> None:
    expected = one_by_one("qwen2_5_vl", FAMILIES["qwen2_5_vl"].rows(SEED))
    check_equal(run_ranks(2, rank_without_images, True), expected)


def test_what_cannot_be_split_is_refused(made: Made) -> None:
    part: Any = sm.ContextSplit("zigzag-thd", 0, 2)
    with pytest.raises(ConfigError, match=r"9 places: plan with --alignment 4"):
        sm.Collate("megatron", context=part)([documents()])
    with pytest.raises(ConfigError, match="'spiral': use one of ulysses, ring"):
        sm.ContextSplit("spiral", 0, 2)
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        sm.ContextSplit("ring", 2, 2)
    for trainer in ("torchtitan", "nemo", "nemo-thd"):
        with pytest.raises(ConfigError, match="itself: leave out context"):
            sm.Collate(trainer, context=part)
    with pytest.raises(ConfigError, match="in the order of the row: context ulysses or ring"):
        sm.Collate("transformers", context=part)
    with pytest.raises(ConfigError, match="take a multiple of 4"):
        sm.Collate("torch", length=30, context=part)
    ring = sm.Collate("torch", context=sm.ContextSplit("ring", 0, 2))
    with pytest.raises(ConfigError, match="rank and world of the data-parallel group"):
        sm.loader(made.plan_path, made.tokens, collate=ring)
    loader = sm.loader(made.plan_path, made.tokens, collate=ring, rank=0, world=1)
    batch = next(iter(loader))
    with pytest.raises(ConfigError, match="one part of a row"):
        sm.dense_mask(batch)
    part = sm.Collate("transformers", context=sm.ContextSplit("ring", 0, 2))([documents()])
    with pytest.raises(ConfigError, match="one part of a row"):
        sm.dense_mask(part)
    family = FAMILIES["qwen2_vl"]
    with pytest.raises(ConfigError, match="a row with pixels cannot be split"):
        ring(family.rows(SEED))
