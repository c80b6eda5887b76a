"""Ranks of torch.distributed on this machine, and what each of them trains in the tests."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hf_processors import transformers
from tiny_models import FAMILIES, IMAGE_ID, join_packs
from torch.nn import functional

import shardmill as sm
from shardmill.packing.build import BuildSpec, build_pack
from shardmill.train.collate import DummyImage
from shardmill.train.documents import TrainPack

transformers()
from transformers import AttentionInterface  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402

SEED = 5
# Borders of ranks fall into documents and between them.
LENGTHS = (9, 1, 30, 17, 5, 40, 8)
Result = dict[str, torch.Tensor]


def run_ranks(world: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what `work(*given)` returns on each of the ranks, which talk by gloo."""
    context = multiprocessing.get_context("forkserver")
    # Imported once, by the process from which the others are forked; it has no other path.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    context.set_forkserver_preload(["parallel_ranks"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_run, args=(rank, world, Path(folder), work, given))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
        alive = [rank for rank in ranks if rank.is_alive()]
        for rank in alive:
            rank.kill()
        assert not alive, "ranks wait for each other"
        assert not any(rank.exitcode for rank in ranks)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def _run(rank: int, world: int, folder: Path, work: Callable[..., Any], given: Any) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        torch.save(work(*given), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def documents(alignment: int = 1, lengths: tuple[int, ...] = LENGTHS) -> TrainPack:
    """Return the pack of all documents."""
    family = FAMILIES["llama"]
    return join_packs(family, family.rows(SEED, lengths), alignment)


def gradients(model: Any) -> Result:
    """Return the gradient of each parameter, averaged over the ranks as trainers do."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for gradient in found.values():
        if dist.is_initialized():
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
    return found


class Gather(torch.autograd.Function):
    """The tensors of all ranks, one after another along an axis."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, axis: int) -> torch.Tensor:
        ctx.axis = axis
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own.contiguous())
        return torch.cat(found, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), ctx.axis)[dist.get_rank()], None


def one_by_one(name: str, rows: list[TrainPack]) -> Result:
    """Return the mean loss over all labels, and gradients, of documents that are fed alone."""
    family = FAMILIES[name]
    model = family.model("eager")
    count = sum(int((row.pack.labels() != -100).sum()) for row in rows)
    total = torch.zeros(())
    for row in rows:
        ids = torch.from_numpy(row.pack.input_ids)[None]
        types = {}
        if family.type_ids is not None:
            types[family.type_ids] = torch.from_numpy(row.pack.modality.astype(np.int64))[None]
        logits = model(input_ids=ids, **types, **row.tensors).logits[0]
        labels = torch.from_numpy(row.pack.labels())
        loss = functional.cross_entropy(logits, labels, reduction="sum") / count
        loss.backward()
        total += loss.detach()
    return {"loss": total, **gradients(model)}


def split(kind: str, name: str = "llama") -> Result:
    """Train one step on this rank's part of a pack, with keys and values from all ranks."""
    context = sm.ContextSplit(kind, dist.get_rank(), dist.get_world_size())
    thd = kind.endswith("thd")
    collate = sm.Collate("megatron" if thd else "torch", context=context)
    batch = collate([documents(context.multiple if thd else 1)])
    ids = batch["tokens" if thd else "input_ids"]
    positions = batch["position_ids"]

    if thd:  # as Megatron hands them on: those of the whole row, in the order of the row
        ends, order = batch["cu_seqlens_padded"], context.places
        places = torch.from_numpy(order(ends.diff().long().numpy()))[None]
        own = torch.searchsorted(ends[1:].contiguous(), places, right=True)
    else:
        own = batch["document_ids"]
    everyone, all_positions = Gather.apply(own, 1), Gather.apply(positions, 1)
    mask = (own[0, :, None] == everyone[0]) & (positions[0, :, None] >= all_positions[0])

    def attend(
        module: Any, q: Any, k: Any, v: Any, _: Any, scaling: Any = None, **more: Any
    ) -> Any:
        shared = q.shape[1] // k.shape[1]
        k, v = (Gather.apply(t, 2).repeat_interleave(shared, 1) for t in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        return out.transpose(1, 2), None

    AttentionInterface.register("gathered", attend)
    AttentionMaskInterface.register("gathered", lambda **given: None)
    model = FAMILIES[name].model("gathered")
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    labels = batch["labels"][0]
    loss = functional.cross_entropy(logits, labels, reduction="sum") / sm.num_items(batch)
    loss.backward()
    return _with_mean(loss, model)


def megatron_part(size: int) -> torch.Tensor:
    """Return the places of this rank as Megatron-core cuts a row."""
    from megatron.core.utils import get_batch_on_this_cp_rank

    row = {"tokens": torch.arange(size)[None]}
    return get_batch_on_this_cp_rank(row, dist.group.WORLD)["tokens"][0]


def _with_mean(loss: torch.Tensor, model: Any) -> Result:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return {"loss": mean / dist.get_world_size(), **gradients(model)}


def ulysses(name: str) -> Result:
    """Train one step of a model of transformers on this rank's part, by its own loss."""
    context = sm.ContextSplit("ulysses", dist.get_rank(), dist.get_world_size())
    batch = sm.Collate("transformers", context=context)([documents()])
    model = FAMILIES[name].model(sm.attention(dist.group.WORLD), num_key_value_heads=2)
    loss = model(**batch, num_items_in_batch=sm.num_items(batch)).loss
    loss.backward()
    return _with_mean(loss, model)


def checked(attention: str | None) -> str:
    """Return what `check_batch` says of a model on rows that are split."""
    context = sm.ContextSplit("ulysses", dist.get_rank(), dist.get_world_size())
    packs = [documents(), documents()]
    collate = sm.Collate("transformers", context=context)
    loader = torch.utils.data.DataLoader(packs, collate_fn=collate)
    own = sm.attention(dist.group.WORLD)
    model = FAMILIES["llama"].model(own if attention is None else attention)
    try:
        sm.check_batch(model, loader)
    except sm.ShardmillError as error:
        return str(error)
    return "right"


def ranks_of_unlike_packs() -> Result:
    """Train one step of two batches under DDP, where ranks have unlike numbers of labels."""
    family = FAMILIES["llama"]
    rows = family.rows(SEED, LENGTHS)
    nothing = TrainPack(-1, build_pack([], BuildSpec()), {})
    rank = dist.get_rank() if dist.is_initialized() else None
    packs = [join_packs(family, rows[:3]), join_packs(family, rows[3:6]), rows[6], nothing]
    mine = packs if rank is None else packs[rank::2]
    batches = [sm.Collate("transformers")([pack]) for pack in mine]
    model = family.model(sm.attention())
    runner = model if rank is None else torch.nn.parallel.DistributedDataParallel(model)
    count, total = sm.num_items(*batches), torch.zeros(())
    for number, batch in enumerate(batches):
        runner.require_backward_grad_sync = number == len(batches) - 1
        loss = runner(**batch, num_items_in_batch=count).loss
        loss.backward()
        total += loss.detach()
    if rank is None:
        return {"loss": total, **gradients(model)}
    dist.all_reduce(total)
    found = {name: p.grad for name, p in model.named_parameters()}  # DDP has averaged them
    return {"loss": total / dist.get_world_size(), **found}


def rank_without_images(has_dummy: bool) -> Result:
    """Train one step with sharded weights, where the second rank has no image."""
    from torch.distributed.fsdp import fully_shard

    family = FAMILIES["qwen2_5_vl"]
    rows = family.rows(SEED)
    white = {"pixel_values": torch.ones(16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    ids = np.full(4, IMAGE_ID) if has_dummy else np.empty(0, np.int64)
    dummy = DummyImage(ids, white if has_dummy else {}, family.type_ids)
    mine = [rows[2:], rows[:2]][dist.get_rank()]
    batch = sm.Collate("transformers", dummy=dummy)([join_packs(family, mine)])
    model = family.model(sm.attention())
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.visual.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss = model(**batch, num_items_in_batch=sm.num_items(batch)).loss
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    found = {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": mean / dist.get_world_size(), **found}
