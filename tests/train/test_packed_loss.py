"""A document in a pack has the loss that it has alone, token by token, whoever trains on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_models import FAMILIES, IMAGE_ID, Family, join_packs, transformers
from torch.nn import functional

import shardmill as sm
from shardmill.errors import ConfigError
from shardmill.train.attention import NAME, attend
from shardmill.train.collate import TRAINERS, Collate, DummyImage
from shardmill.train.documents import TrainPack

SEED = 3
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    """Register our attention, and let flex attention run without compiling."""
    transformers()
    sm.attention()
    if torch.cuda.is_available():
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss at each place, of labels that are shifted; 0 where there is no label."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def types_of(family: Family, pack: TrainPack) -> dict[str, torch.Tensor]:
    if family.type_ids is None:
        return {}
    return {family.type_ids: torch.from_numpy(pack.pack.modality.astype(np.int64))[None]}


@cache
def alone(name: str) -> torch.Tensor:
    """Return the losses of each document as the model itself would take it, one after another."""
    family = FAMILIES[name]
    model, found = family.model("eager"), []
    for pack in family.rows(SEED):
        ids = torch.from_numpy(pack.pack.input_ids)[None]
        with torch.no_grad():
            made = model(input_ids=ids, **types_of(family, pack), **pack.tensors)
        found.append(losses(made.logits[0], torch.from_numpy(pack.pack.labels())))
    return torch.cat(found)


def collate(family: Family, trainer: str = "transformers", **settings: Any) -> Collate:
    bare = DummyImage(np.empty(0, np.int64), {}, family.type_ids)
    return Collate(trainer, dummy=bare, **settings)


def packs_of(family: Family) -> list[TrainPack]:
    """Return the documents in two packs."""
    rows = family.rows(SEED)
    return [join_packs(family, rows[:3]), join_packs(family, rows[3:])]


def to(device: str, batch: dict[str, Any]) -> dict[str, Any]:
    return {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}


def takes(name: str, attention: str) -> None:
    library = getattr(transformers(), FAMILIES[name].build)
    if attention == "flex_attention" and not library._supports_flex_attn:
        pytest.skip("the model does not take flex attention")


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention", NAME])
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers(name: str, attention: str) -> None:
    takes(name, attention)
    family = FAMILIES[name]
    model = family.model(attention)
    batch = collate(family, multiple_of=8)(packs_of(family))
    assert "attention_mask" not in batch
    with torch.no_grad():
        made = model(**batch)
        mean = model(**batch, num_items_in_batch=sm.num_items(batch)).loss
    # The model shifts labels itself: the token at each place is predicted at the place before.
    shifted = functional.pad(batch["labels"][0, 1:], (0, 1), value=-100)
    expected = alone(name)
    found = losses(made.logits[0], shifted)[: len(expected)]
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(found > 0, expected > 0)
    count = int((expected > 0).sum())
    assert sm.num_items(batch) == count
    assert torch.allclose(mean, expected.sum() / count, atol=1e-5)
    sm.check_batch(model, batch)


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "transformers"])
@pytest.mark.parametrize("name", ["llama", "qwen2_5_vl"])
def test_other_trainers(name: str, trainer: str) -> None:
    family = FAMILIES[name]
    if trainer == "torchtitan" and family.rule is not None:
        with pytest.raises(ConfigError, match="positions of one axis"):
            collate(family, trainer)(packs_of(family))
        return
    batch = collate(family, trainer)(packs_of(family))
    labels = batch[1] if trainer == "torchtitan" else batch["labels"]
    positions, more = read_as(trainer, batch)
    given = batch[0] if trainer == "torchtitan" else batch
    ids = next(given[key] for key in ("input_ids", "tokens", "input") if key in given)
    media = {key: given[key] for key in ("pixel_values", "image_grid_thw") if key in given}
    with torch.no_grad():
        logits = family.model("eager")(
            input_ids=ids, position_ids=positions, use_cache=False, **more, **media
        ).logits
    found = losses(logits.flatten(0, 1), labels.flatten())
    assert torch.allclose(found[found > 0], alone(name)[alone(name) > 0], atol=1e-5)


def read_as(trainer: str, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return positions, and what else a model must know of documents, as the trainer finds it."""
    if trainer == "nemo":
        assert ("cu_seq_lens_q" in batch) == ("pixel_values" not in batch)
        return batch["position_ids"], {}  # by the positions alone
    if trainer == "nemo-thd":
        padded = batch["seq_lens_padded"]
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), padded[padded > 0].cumsum(0)])
        assert batch["qkv_format"] == "thd"
        batch = {**batch, "cu_seqlens": ends.to(torch.int32)}
    if trainer == "megatron":
        assert torch.equal(batch["loss_mask"] > 0, batch["labels"] != -100)
        assert batch["max_seqlen"].shape == (1,)
    positions = batch[0]["positions"] if trainer == "torchtitan" else batch["position_ids"]
    return positions, {"attention_mask": sm.dense_mask(batch, torch.float32)}


@pytest.mark.parametrize("attention", ["sdpa", NAME])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients(name: str, attention: str) -> None:
    family = FAMILIES[name]
    rows = family.rows(SEED)
    count = sm.num_items(collate(family)(rows))

    def gradients(attention: str, batches: list[Any]) -> list[torch.Tensor]:
        model = family.model(attention)
        for batch in batches:
            model(**batch, num_items_in_batch=count).loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    ones = gradients("eager", [collate(family)([row]) for row in rows])
    packed = gradients(attention, [collate(family)(rows)])
    assert len(ones) == len(packed)
    for one, other in zip(ones, packed):
        assert (one - other).norm() <= 1e-5 * one.norm() + 1e-6


@pytest.mark.parametrize("name", ["qwen2", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_trainer_weighs_tokens_alike_over_batches(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    family = FAMILIES[name]
    batches = [collate(family)([pack]) for pack in packs_of(family)]

    class Trainer(transformers().Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(batches, batch_size=None)

    model = family.model(NAME)
    model.accepts_loss_kwargs = True  # as docs/attention.md says
    how = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "report_to": "none"}
    how |= {"gradient_accumulation_steps": len(batches), "use_cpu": True}
    trainer = Trainer(model, transformers().TrainingArguments(tmp_path, **how))
    trainer.train()
    expected = alone(name)
    mean = float(expected.sum() / (expected > 0).sum())
    assert trainer.state.log_history[0]["loss"] == pytest.approx(mean, abs=1e-4)


def test_padding_inside_of_documents_changes_nothing() -> None:
    family = FAMILIES["qwen2_vl"]
    pack = join_packs(family, family.rows(SEED), alignment=8)
    batch = collate(family, length=160)([pack])
    with torch.no_grad():
        logits = family.model("sdpa")(**batch).logits[0]
    found = losses(logits[:-1], batch["labels"][0, 1:])
    expected = alone("qwen2_vl")
    assert torch.allclose(found[found > 0], expected[expected > 0], atol=1e-5)


def test_a_dummy_image_changes_nothing() -> None:
    family = FAMILIES["qwen2_5_vl"]
    white = {"pixel_values": torch.ones(16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    dummy = DummyImage(np.full(4, IMAGE_ID), white, family.type_ids)
    rows = family.rows(SEED)
    bare = join_packs(family, rows[:2])
    model = family.model(NAME)
    batch = Collate("transformers", dummy=dummy)([bare])
    assert len(batch["image_grid_thw"]) == 1
    made = model(**batch)
    made.loss.backward()
    assert model.model.visual.patch_embed.proj.weight.grad is not None
    shifted = functional.pad(batch["labels"][0, 1:], (0, 1), value=-100)
    size = len(bare.pack.input_ids)
    found = losses(made.logits[0], shifted)[:size]
    assert torch.allclose(found, alone("qwen2_5_vl")[:size], atol=1e-5)
    # A batch with an image needs none.
    assert len(Collate("transformers", dummy=dummy)(packs_of(family))["image_grid_thw"]) > 1


def leaky(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, q, k, v, None, scaling=options.get("scaling"))


def test_models_that_would_leak_are_found() -> None:
    from transformers import AttentionInterface

    family = FAMILIES["llama"]
    batch = collate(family)(packs_of(family))
    AttentionInterface.register("leaky", leaky)
    for dtype in (torch.float32, torch.bfloat16):
        model = family.model("leaky").train().to(dtype)
        with pytest.raises(ConfigError, match=r"see each other.*'leaky'.*sm\.attention\(\)"):
            sm.check_batch(model, batch)
        sm.check_batch(family.model(NAME).to(dtype), batch)
    assert model.training
    with pytest.raises(ConfigError, match="no batch of collate"):
        sm.check_batch(model, collate(family, "torch")(packs_of(family)))
    # With the cache that models make by default, transformers does not look for documents.
    with pytest.raises(ConfigError, match="see each other"):
        sm.check_batch(family.model("sdpa"), {k: v for k, v in batch.items() if k != "use_cache"})
    with pytest.raises(ConfigError, match="see each other"):
        sm.check_batch(family.model("sdpa"), {**batch, "use_cache": True})
    # With a mask of padding it does not, either.
    for less in ({"attention_mask": torch.ones_like(batch["input_ids"])}, {"position_ids": None}):
        given = {k: v for k, v in {**batch, **less}.items() if v is not None}
        with pytest.raises(ConfigError, match="the batch as the loader made it"):
            sm.check_batch(family.model(NAME), given)
    pictures = FAMILIES["qwen2_vl"]
    three = collate(pictures)(packs_of(pictures))
    three["position_ids"] = three["position_ids"][1:]
    with pytest.raises(ConfigError, match="see each other"):
        sm.check_batch(pictures.model("sdpa"), three)


def test_what_the_attention_cannot_do_is_refused() -> None:
    library = transformers()
    settings = {**FAMILIES["llama"].settings, "head_dim": 8, "sliding_window": 8}
    torch.manual_seed(0)
    config = library.Gemma2Config(**settings)
    model = library.Gemma2ForCausalLM._from_config(config, attn_implementation=NAME)
    batch = collate(FAMILIES["llama"])(packs_of(FAMILIES["llama"]))
    with pytest.raises(ConfigError, match=r"softcap.*flex_attention"):
        model(**batch)


def test_padded_batches_and_generation_are_right() -> None:
    family = FAMILIES["llama"]
    ours, eager = family.model(NAME), family.model("eager")
    ids = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 4]])
    mask = (ids > 0).long()
    with torch.no_grad():
        found, expected = (m(input_ids=ids, attention_mask=mask).logits for m in (ours, eager))
    assert torch.allclose(found[mask > 0], expected[mask > 0], atol=1e-5)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": mask}
    assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


def test_positions_that_were_written_over_are_read_again() -> None:
    model = FAMILIES["llama"].model(NAME)
    ids, positions = torch.arange(1, 9)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    with torch.no_grad():
        first = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        positions.copy_(torch.arange(8))
        whole = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        expected = model(input_ids=ids, use_cache=False).logits
    assert torch.allclose(first[:, :4], whole[:, :4], atol=1e-5)
    assert torch.allclose(whole, expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_documents_of_unlike_lengths(causal: bool, window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(14, heads, 8) for heads in (4, 2, 2))
    ends = torch.tensor([0, 3, 8, 11, 11, 14], dtype=torch.int32)
    found = attend(q, k, v, ends, 5, causal=causal, window=window)
    for start, end in zip(ends.tolist(), ends.tolist()[1:]):
        size = end - start
        behind = torch.arange(size)[:, None] - torch.arange(size)
        mask = (behind >= 0) if causal else torch.ones(size, size, dtype=torch.bool)
        if window is not None:
            mask &= behind.abs() < window
        parts = (
            t[start:end].repeat_interleave(4 // t.shape[1], 1).transpose(0, 1) for t in (q, k, v)
        )
        one = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        assert torch.allclose(found[start:end], one.transpose(0, 1), atol=1e-5)


def test_masks_of_a_batch() -> None:
    family = FAMILIES["llama"]
    packs = packs_of(family)
    (titan, _), row = collate(family, "torchtitan")(packs), collate(family, "torch")(packs)
    dense = sm.dense_mask(row)
    ids = row["document_ids"][0]
    expected = (ids[:, None] == ids).tril()
    assert torch.equal(dense[0, 0], expected)
    from torch.nn.attention.flex_attention import create_mask

    block = sm.block_mask(row)
    size = len(ids)
    assert torch.equal(create_mask(block.mask_mod, 1, 1, size, size, "cpu"), dense)
    assert sm.dense_mask((titan, None)).shape[0] == 2
    images = collate(FAMILIES["qwen2_vl"])(packs_of(FAMILIES["qwen2_vl"]))
    ids = images["seq_idx"][0]
    assert torch.equal(sm.dense_mask(images)[0, 0], (ids[:, None] == ids).tril())
    with pytest.raises(ConfigError, match="batch of Collate"):
        sm.dense_mask({"input_ids": row["input_ids"]})


@on_gpu
@pytest.mark.parametrize("name", FAMILIES)
def test_our_attention_on_a_gpu_in_bf16(name: str) -> None:
    family = FAMILIES[name]

    def run(attention: str, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        batch = to(device, collate(family, media_dtype=dtype)(packs_of(family)))
        model = family.model(attention).to(device, dtype)
        made = model(**batch)
        made.loss.backward()
        sm.check_batch(model, batch)
        shifted = functional.pad(batch["labels"][0, 1:], (0, 1), value=-100)
        found = [p.grad for p in model.parameters() if p.grad is not None]
        return [t.detach().float().cpu() for t in (losses(made.logits[0], shifted), *found)]

    exact = run("eager", "cpu", torch.float32)
    eager, ours = (run(how, "cuda", torch.bfloat16) for how in ("eager", NAME))
    assert len(exact) == len(eager) == len(ours)
    # Losses and gradients are no further from those of fp32 than with eager attention.
    for a, b, c in zip(exact, eager, ours):
        assert (c - a).norm() <= 2 * (b - a).norm() + 0.01 * a.norm()


@on_gpu
@pytest.mark.parametrize("attention", ["sdpa", "flex_attention", NAME])
@pytest.mark.parametrize("name", FAMILIES)
def test_packed_on_a_gpu_in_fp32(name: str, attention: str) -> None:
    takes(name, attention)
    torch.compiler.reset()  # flex has no kernel for a short pack once it believes in dynamic shapes
    torch.backends.cudnn.allow_tf32 = False  # in convolutions it is on by default
    family = FAMILIES[name]
    batch = to("cuda", collate(family)(packs_of(family)))
    with torch.no_grad():
        logits = family.model(attention).cuda()(**batch).logits[0]
    shifted = functional.pad(batch["labels"][0, 1:], (0, 1), value=-100)
    assert torch.allclose(losses(logits, shifted).cpu()[: len(alone(name))], alone(name), atol=1e-3)


@on_gpu
def test_the_kernel_runs_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardmill.train import attention as module

    def never(*args: Any) -> Any:
        raise AssertionError("the slow way was taken")

    monkeypatch.setattr(module, "_attend_by_length", never)
    for name in FAMILIES:
        family = FAMILIES[name]
        batch = to("cuda", collate(family, media_dtype=torch.bfloat16)(packs_of(family)))
        model = family.model(NAME).to("cuda", torch.bfloat16)
        assert torch.isfinite(model(**batch).loss)
