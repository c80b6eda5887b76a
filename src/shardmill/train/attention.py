"""Attention that stays inside of documents: for models of transformers, and masks for one's own.

`attention()` registers an implementation under a name for `from_pretrained(attn_implementation=)`.
It needs no package beside torch:

    documents of a pack, on a GPU      `varlen_attn`: no mask, no padding
    frames and windows of a tower      the same
    images that see themselves whole   flex attention (Gemma 3), as any mask that is not plain
    elsewhere, and in float32          `scaled_dot_product_attention` of documents of one length

`check_batch` tries whether a model keeps documents apart, whatever its attention is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from shardmill.errors import ConfigError, need
from shardmill.model.tokenrow import TokenRow
from shardmill.packing.build import NO_LABEL, BuildSpec, build_pack
from shardmill.train.collate import Collate
from shardmill.train.context import ContextSplit
from shardmill.train.documents import TrainPack

# Towers of transformers 5 pass their images and windows on in one call if they read "flash".
NAME = "shardmill_flash"
ULYSSES = "shardmill_flash_ulysses"
# Masks made of nothing but these are what `cu_seqlens`, causality and a window already say.
PLAIN = {
    "causal_mask_function",
    "and_masks.<locals>.and_mask",
    "packed_sequence_mask_function.<locals>.inner_mask",
    "sliding_window_overlay.<locals>.inner_mask",
}
# Kernels take head sizes in steps of 8, up to this.
HEAD_STEP, MAX_HEAD = 8, 256
# Tokens from which a mask of blocks is worth its compiling; below, a dense one takes 16 MiB.
FLEX_FROM = 4096
# Tokens of each of the two documents on which a model is tried.
PROBE = 16


def attention(group: Any = None) -> str:
    """Register an attention that keeps documents apart; returns its name.

        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=sm.attention())

    Text and vision towers, forward and backward. A model whose attention it cannot compute (a soft
    cap, sinks) is a `ConfigError` when it runs. With a `group` of torch.distributed, whose ranks
    share each row (`ContextSplit("ulysses", ...)`), each rank attends over the whole row with its
    share of the heads.
    """
    hf = need("transformers", extra="train")
    masks = need("transformers.masking_utils", extra="train")
    models = need("transformers.modeling_utils", extra="train")
    name = NAME if group is None else ULYSSES
    attend_in = _attend if group is None else partial(_attend_ulysses, group)
    hf.AttentionInterface.register(name, attend_in)
    masks.AttentionMaskInterface.register(name, _mask)
    loading = models.lazy_import_flash_attention
    if not hasattr(loading, "skips"):
        # Of a name with "flash" in it transformers would load a package or a kernel from its hub.
        def load(implementation: str | None, *args: Any, **options: Any) -> Any:
            is_ours = implementation in (NAME, ULYSSES)
            return None if is_ours else loading(implementation, *args, **options)

        load.skips = True  # type: ignore[attr-defined]
        models.lazy_import_flash_attention = load
    return name


def _mask(**given: Any) -> Any:
    # What transformers hands to its layers: None where no mask is needed.
    masks = need("transformers.masking_utils", extra="train")
    own = given.get("attention_mask")
    at = given.get("cache_position")  # before version 5
    num_queries = given["q_length"] if at is None else len(at)
    is_whole = num_queries == given["kv_length"] and (own is None or bool(own.all()))
    if is_whole and _is_plain(given.get("mask_function", masks.causal_mask_function)):
        return None
    device = at.device if at is not None else torch.device(given.get("device", "cpu"))
    if is_whole and device.type == "cuda" and num_queries >= FLEX_FROM:
        return masks.flex_attention_mask(**given)
    return masks.sdpa_mask(**{**given, "allow_is_causal_skip": False})


def _is_plain(function: Any) -> bool:
    if getattr(function, "__qualname__", None) not in PLAIN:
        return False
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    inner = [part for cell in cells for part in (cell if isinstance(cell, tuple) else (cell,))]
    return all(_is_plain(part) for part in inner if callable(part))


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    position_ids: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as the layers of transformers call it, with queries [B, heads, S, size]."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {"dropout": dropout, "scaling": scaling, **more}
    for name in ("softcap", "s_aux", "position_bias"):
        if more.get(name) is not None and not _is_block_mask(attention_mask):
            raise ConfigError(
                f"{type(module).__name__} needs {name}, which this attention has not: load the "
                'model with attn_implementation="flex_attention"'
            )
    if _is_block_mask(attention_mask):
        flex = need("transformers.integrations.flex_attention", extra="train")
        return flex.flex_attention_forward(module, query, key, value, attention_mask, **options)[
            0
        ], None
    is_cut = cu_seq_lens_q is not None or position_ids is not None or causal
    if attention_mask is not None or query.shape[2] != key.shape[2] or not is_cut:
        sdpa = need("transformers.integrations.sdpa_attention", extra="train")
        if attention_mask is not None:
            attention_mask = attention_mask[..., : key.shape[-2]]
        made = sdpa.sdpa_attention_forward(
            module, query, key, value, attention_mask, is_causal=causal, **options
        )
        return made[0], None
    if dropout:
        raise ConfigError("attention of documents has no dropout: set attention_dropout to 0")
    batch, heads, size, _ = query.shape
    if cu_seq_lens_q is None:
        cu_seq_lens_q, max_length_q = _LAST_ENDS.of(position_ids, query)
    longest = int(cu_seq_lens_q.diff().max()) if max_length_q is None else int(max_length_q)
    q, k, v = (
        t.transpose(1, 2).reshape(batch * size, -1, t.shape[-1]) for t in (query, key, value)
    )
    out = attend(
        q, k, v, cu_seq_lens_q, longest, causal=causal, scale=scaling, window=sliding_window
    )
    return out.view(batch, size, heads, -1), None


def _attend_ulysses(
    group: Any,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    cu_seq_lens_q: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the whole row, of which each rank of the group has one part."""
    world, heads, size = group.size(), query.shape[1], query.shape[2]
    shared = math.lcm(key.shape[1], world)
    if heads % shared:
        raise ConfigError(
            f"{heads} heads with {key.shape[1]} of keys cannot be shared by {world} ranks: take a "
            "context split among fewer"
        )
    if attention_mask is not None or cu_seq_lens_q is None:
        raise ConfigError(
            'this attention takes batches of sm.Collate("transformers", context=...) as they are, '
            "for models that need no mask beside causality, documents and windows"
        )
    torch._assert_async(cu_seq_lens_q[-1] == world * query.shape[0] * size)
    key, value = (t.repeat_interleave(shared // t.shape[1], 1) for t in (key, value))
    query, key, value = (_exchange(t, 1, 2, group) for t in (query, key, value))
    out, _ = _attend(module, query, key, value, None, cu_seq_lens_q=cu_seq_lens_q, **options)
    return _exchange(out, 1, 2, group), None


def _exchange(given: torch.Tensor, cut: int, join: int, group: Any) -> torch.Tensor:
    # Rank r gets the r-th piece along one axis from all ranks, joined along the other.
    sent = torch.stack(given.chunk(group.size(), cut))
    return torch.cat(_AllToAll.apply(sent, group).unbind(), join)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, sent: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        got = torch.empty_like(sent)
        torch.distributed.all_to_all_single(got, sent, group=group)
        return got

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _AllToAll.apply(gradient.contiguous(), ctx.group), None


def _is_block_mask(mask: Any) -> bool:
    return type(mask).__name__ == "BlockMask"


class _Ends:
    """Where documents end by their positions, kept from layer to layer of a step."""

    def __init__(self) -> None:
        self._positions: torch.Tensor | None = None
        self._at: tuple[int, ...] = ()
        self._found = (torch.empty(0), 0)

    def of(self, positions: torch.Tensor | None, query: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the ends, and the longest document, for queries [B, heads, S, size]."""
        batch, _, size, _ = query.shape
        if positions is None or positions.is_inference():
            version = -1
        else:
            version = positions._version  # whether somebody has written into the tensor since
        at = (batch, size, version)
        if version >= 0 and positions is self._positions and at == self._at:
            return self._found
        # As flash attention of transformers: each begins at the smallest position.
        is_first = torch.zeros(batch, size, dtype=torch.bool, device=query.device)
        if positions is not None and positions.shape[-1] == size:
            is_first |= positions.reshape(-1, size) == positions.min()
        is_first[:, 0] = True
        starts = is_first.flatten().nonzero().flatten()
        ends = functional.pad(starts, (0, 1), value=batch * size).to(torch.int32)
        self._positions, self._at = positions, at
        self._found = (ends, int(ends.diff().max()))
        return self._found


# Finding them waits for the GPU: once a step, not once a layer.
_LAST_ENDS = _Ends()


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Return attention inside of each document, for tensors [tokens, heads, size].

    `cu_seqlens` (int32) is 0 and the place after each document. Keys may have fewer heads. A place
    sees at most `window` places, itself included.
    """
    if torch.is_autocast_enabled(query.device.type):
        to = torch.get_autocast_dtype(query.device.type)
        query, key, value = (t.to(to) for t in (query, key, value))
    width, value_width = query.shape[-1], value.shape[-1]
    scale = width**-0.5 if scale is None else scale
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if not (query.is_cuda and is_half and width <= MAX_HEAD and _varlen() is not None):
        return _attend_by_length(query, key, value, cu_seqlens, causal, scale, window)
    query, key, value = (
        functional.pad(t, (0, -(-width // HEAD_STEP) * HEAD_STEP - t.shape[-1]))
        if t.shape[-1] % HEAD_STEP or t.shape[-1] != width
        else t
        for t in (query, key, value)
    )
    how: dict[str, Any] = {"scale": scale}
    if "window_size" in _varlen_options():
        how["window_size"] = (-1 if window is None else window - 1, 0 if causal else -1)
    elif window is not None and window < max_seqlen:
        return _attend_by_length(query, key, value, cu_seqlens, causal, scale, window)
    else:
        how["is_causal"] = causal
    if "enable_gqa" in _varlen_options():
        how["enable_gqa"] = key.shape[1] != query.shape[1]
    ends = cu_seqlens.to(torch.int32)
    out: torch.Tensor = _varlen()(query, key, value, ends, ends, max_seqlen, max_seqlen, **how)
    return out[..., :value_width]


@cache
def _varlen() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn


@cache
def _varlen_options() -> frozenset[str]:
    return frozenset(inspect.signature(_varlen()).parameters)


def _attend_by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    # Documents of 3, 5, 3 tokens: those at 0 and 8 in one call, that at 3 in another.
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff()
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for length in sorted(set(lengths.tolist()) - {0}):
        places = torch.arange(length, device=query.device)
        at = starts[lengths == length][:, None] + places
        mask = None
        if window is not None and window < length:
            behind = places[:, None] - places
            mask = (behind < window) & ((behind >= 0) if causal else (behind > -window))
        q, k, v = (t[at].transpose(1, 2) for t in (query, key, value))
        is_causal = causal and mask is None
        seen = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale
        )
        out[at] = seen.transpose(1, 2)
    return out


def _document_ids(batch: Any) -> torch.Tensor:
    # The document of each place, over all rows: [B, S].
    if isinstance(batch, tuple):
        batch = batch[0]
    if "seq_idx" in batch and "shift_labels" not in batch:
        return batch["seq_idx"]
    name = next((n for n in ("cu_seqlens_padded", "cu_seqlens", "cu_seq_lens_q") if n in batch), "")
    ids = next((batch[n] for n in ("input_ids", "tokens", "input") if n in batch), None)
    if ids is None or (not name and "positions" not in batch):
        raise ConfigError("a mask is made of a batch of Collate: it tells where documents end")
    if not name:
        return (batch["positions"] == 0).flatten().cumsum(0).view(ids.shape)
    ends = batch[name].to(ids.device)
    if ends[-1] != ids.numel():
        raise ConfigError(
            "the batch is one part of a row that is split: a mask is made of the whole"
        )
    places = torch.arange(ids.numel(), device=ids.device)
    return torch.searchsorted(ends[1:].contiguous(), places, right=True).view(ids.shape)


def dense_mask(batch: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the mask bool [B, 1, S, S] of a batch: a place sees itself and its document before it.

    With a float `dtype` it is what is added to scores, as "eager" attention of transformers takes
    it. It is made on the device where the batch lies, and takes S x S values: use it where
    attention takes nothing else.
    """
    ids = _document_ids(batch)
    seen = (ids[:, :, None] == ids[:, None, :]).tril_()[:, None]
    if dtype is None:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )


def block_mask(batch: Any) -> Any:
    """Return the `BlockMask` of a batch for `flex_attention`, made on the batch's device."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids = _document_ids(batch)

    def see(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (ids[b, q] == ids[b, k])

    rows, size = ids.shape
    return create_block_mask(see, rows, None, size, size, device=ids.device)


def check_batch(model: Any, batch: Any) -> None:
    """Raise `ConfigError` if documents of a pack see each other in this model.

    `batch` is one of `collate="transformers"`, or the loader, whose state stays as it is. Two short
    documents are made of its tokens, the first is then changed, and what the model says of the
    second must stay as it was. With sharded weights all ranks must call it, as with a context
    split: there a document must also see its beginning on another rank.

        sm.check_batch(model, loader)
    """
    context = None
    if isinstance(batch, DataLoader):
        packs = getattr(batch.dataset, "packs", batch.dataset)
        collate = getattr(batch.dataset, "collate", batch.collate_fn)
        if (context := getattr(collate, "context", None)) is not None:
            collate = replace(collate, context=None)  # so that all ranks take the same words
        batch = collate([packs[0]])
    if not isinstance(batch, Mapping) or "seq_idx" not in batch:
        raise ConfigError('this is no batch of collate="transformers", which alone can be tried')
    if "shift_labels" in batch:
        raise ConfigError("of rows that are split the loader must be given, not one part")
    mask = batch.get("attention_mask")
    if "position_ids" not in batch or (mask is not None and mask.ndim < 4):
        raise ConfigError(
            "documents are found by position_ids, and only where there is no attention_mask: give "
            "the model the batch as the loader made it (padding is a document of its own)"
        )
    labels = batch["labels"].flatten()
    ids = batch["input_ids"].flatten()[labels != NO_LABEL]
    if not len(ids):
        ids = batch["input_ids"].flatten()
    # The first rank has the first document and the head of the second, which fills the others.
    size = PROBE if context is None else PROBE * (2 * context.world - 1)
    words = np.resize(ids[: 3 * size].cpu().numpy(), 3 * size).reshape(3, size)
    words[1] = np.where(words[1] == words[0], np.roll(words[0], 1), words[1])
    trial = partial(_logits, model, batch, context)
    logits, is_second = trial([words[0, :PROBE], words[2]])
    seen = (logits - trial([words[1, :PROBE], words[2]])[0])[is_second].abs().max()
    # The same numbers in the same places: only kernels that mix rows may differ, by a rounding.
    rounding = torch.finfo(logits.dtype).eps * logits.abs().max()
    is_alone = False
    if context is not None:
        other = np.where(words[0] == words[2], words[1], words[0])
        other[PROBE:] = words[2, PROBE:]
        moved = (logits - trial([words[0, :PROBE], other])[0]).abs().max()
        found = torch.stack([seen - rounding, (rounding - moved) if context.rank else -moved])
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        seen, is_alone = found[0] + rounding, bool(found[1] >= 0)
    config = getattr(model, "config", None)
    name = f"{type(model).__name__} (attention {getattr(config, '_attn_implementation', None)!r})"
    if is_alone:
        raise ConfigError(
            f"a document does not see its beginning on another rank in {name}: load the model with "
            "attn_implementation=sm.attention(group), of the ranks that share a row"
        )
    if not seen <= rounding:
        raise ConfigError(
            f"documents of a pack see each other in {name}: changing one moves the logits of the "
            f"next by {float(seen):.2g}; load the model with attn_implementation=sm.attention(), "
            "or plan with --max-documents 1"
        )


def _logits(
    model: Any, batch: Mapping[str, Any], context: ContextSplit | None, documents: list[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    # What the model says of two documents, and which places are those of the second.
    rows = [TokenRow(key="", ids=np.asarray(ids, np.int64)) for ids in documents]
    collate = Collate("transformers", context=context)
    made = collate([TrainPack(0, build_pack(rows, BuildSpec()), {})])
    if batch["position_ids"].ndim == 3:
        made["position_ids"] = made["position_ids"].expand(len(batch["position_ids"]), 1, -1)
    made = {name: made[name] for name in made if name in batch and name != "labels"}
    if "use_cache" in batch:
        made["use_cache"] = batch["use_cache"]
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in batch:
            made[name] = torch.zeros_like(made["input_ids"])
    device = next(model.parameters()).device
    made = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in made.items()}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(**made).logits[0], made["seq_idx"][0] == 1
    finally:
        model.train(was_training)
