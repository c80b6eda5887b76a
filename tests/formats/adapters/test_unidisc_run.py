"""What a run of UniDisc leaves, written from its description, comes back from us as it was.

The run is `precompute` below: ranks that fill preallocated rows batch by batch and save them as a
TensorDict, at the end or when they are stopped. `merged` is what combining the parts is meant to
give. Both use TensorDict itself, and nothing of ours.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tars import tar_bytes
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from vq_checkpoints import SMALL_LLAMAGEN, write_llamagen

import shardmill as sm
from shardmill.errors import ConfigError, NothingKept, ShardmillError
from shardmill.shards.ledger import open_manifest

LENGTH, TEXT, CODES, BATCH = 48, 12, 16, 3
PAD, BOS, EOS, MARKER = 0, 1, 2, 811
Row = dict[str, torch.Tensor]


def rng_of(id_: int) -> np.random.Generator:
    return np.random.default_rng([id_, 7])


def padded(values: Sequence[int], width: int, fill: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([*values, *[fill] * (width - len(values))][:width], dtype=dtype)


def marks(length: int, width: int) -> torch.Tensor:
    return torch.arange(width) < length


def interleaved(id_: int) -> Row:
    """Text, and for most samples one or two images behind their markers; code 0 is a code."""
    rng, ids, kinds = rng_of(id_), [BOS, 5000 + id_], [0, 0]
    for _ in range(id_ % 3):
        codes = rng.integers(0, 16384, CODES)
        codes[0] = 0
        ids += [MARKER, *codes.tolist(), 31_999]
        kinds += [0, *[1] * CODES, 0]
    ids, kinds = [*ids, EOS], [*kinds, 0]
    return {
        "input_ids": padded(ids, LENGTH, PAD, torch.int16),
        "attention_mask": marks(len(ids), LENGTH),
        "modality": padded(kinds, LENGTH, 0, torch.int8),
    }


def pairs(id_: int) -> Row:
    """A caption, empty, short or cut at its block, and the codes of its image."""
    rng = rng_of(id_)
    words = [BOS, *rng.integers(3, 32_000, id_ * 5 % 14).tolist(), EOS][:TEXT]
    return {
        "img_input_ids": torch.tensor(rng.integers(0, 16384, CODES), dtype=torch.int16),
        "txt_input_ids": padded(words, TEXT, PAD, torch.int32),
        "txt_attention_mask": marks(len(words), TEXT),
    }


def labels(id_: int) -> Row:
    """A class and the codes of its image."""
    codes = rng_of(id_).integers(0, 16384, CODES)
    return {
        "img_input_ids": torch.tensor(codes, dtype=torch.int16),
        "img_label": torch.tensor([id_ * 37 % 1000], dtype=torch.int32),
    }


def chameleon(id_: int) -> Row:
    """A prompt and an image of rows with ends, in Chameleon's ids; modality is never written."""
    rng, height, width = rng_of(id_), 2 + id_ % 2, 4
    codes = rng.integers(4, 8196, (height, width))
    rows = [token for row in codes.tolist() for token in (*row, 8803)]
    sizes = [8804 + height // 2, 8804 + width // 2]
    prompt = rng.integers(8900, 65_536, 4 + id_ % 3).tolist()
    ids = [0, *prompt, 8197, *sizes, *rows, 8196, 8710]
    return {
        "input_ids": padded(ids, LENGTH, -100, torch.int32),
        "attention_mask": marks(len(ids), LENGTH),
        "modality": torch.full((LENGTH,), -1, dtype=torch.int8),
    }


def image_only(id_: int) -> Row:
    """Codes alone; modality is one number a row, and there is no mask."""
    codes = rng_of(id_).integers(0, 16384, CODES)
    return {
        "input_ids": torch.tensor(codes, dtype=torch.int16),
        "modality": torch.ones(1, dtype=torch.int16),
    }


def allocate(row: Row, count: int, idx_shape: tuple[int, ...]) -> TensorDict:
    """Return the rows that a rank makes before it begins."""
    fills = {"modality": -1}
    data = {
        name: torch.full((count, *value.shape), fills.get(name, 0), dtype=value.dtype)
        for name, value in row.items()
    }
    data["idx"] = torch.full((count, *idx_shape), -1, dtype=torch.int32)
    data["write_flag"] = torch.zeros((count, 1), dtype=torch.bool)
    return TensorDict(data, batch_size=[count])


@dataclass(frozen=True)
class Rank:
    """The ids of a rank's samples, and after how many of them it was stopped, if it was."""

    ids: Sequence[int]
    stopped_after: int | None = None
    invalid: frozenset[int] = frozenset()


def precompute(
    folder: Path,
    make: Callable[[int], Row],
    ranks: Mapping[int, Rank],
    *,
    idx_shape: tuple[int, ...] = (1,),
    is_local: bool = False,
) -> None:
    """Run the ranks: each leaves `train_R`, or `tmp_train_R` if it was stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rank in ranks.items():
        data = allocate(make(0), len(rank.ids) + BATCH, idx_shape)
        done = rank.ids[: rank.stopped_after]
        for row, id_ in enumerate(done):
            values: Row = make(id_)
            shown = row if is_local else id_
            values["idx"] = torch.tensor(-1 if id_ in rank.invalid else shown).expand(idx_shape)
            values["write_flag"] = torch.ones(1, dtype=torch.bool)
            for name, value in values.items():
                data[name][row] = value
        if rank.stopped_after is not None:
            data.memmap(folder / f"tmp_train_{number}")
            continue
        (folder / f"train_{number}").mkdir()
        data.memmap(folder / f"train_{number}")
        (folder / f"train_{number}.completed").write_text(f"Processing done for rank {number}\n")


def parts_of(folder: Path) -> Iterator[TensorDict]:
    """Yield the parts with rows, finished ones before temporary ones."""
    names = sorted(path.name for path in folder.iterdir() if (path / "meta.json").exists())
    for name in sorted(names, key=lambda name: (name.startswith("tmp_"), name)):
        yield TensorDict.load_memmap(folder / name)


def merged(folder: Path) -> TensorDict:
    """Return all rows that were written, of each id the first."""
    rows = torch.cat([part.clone() for part in parts_of(folder) if len(part)])
    rows = rows[rows["write_flag"][:, 0] & (rows["idx"].reshape(len(rows)) >= 0)]
    seen: set[int] = set()
    ids = rows["idx"].reshape(len(rows)).tolist()
    first = [n for n, id_ in enumerate(ids) if not (id_ in seen or seen.add(id_))]  # type: ignore[func-returns-value]
    return rows[first].exclude("write_flag")


def assert_same(found: TensorDict, wanted: TensorDict) -> None:
    assert set(found.keys()) == set(wanted.keys())
    for name in wanted.keys():  # noqa: SIM118
        assert (name, found[name].dtype, found[name].shape) == (
            name,
            wanted[name].dtype,
            wanted[name].shape,
        )
        assert torch.equal(found[name], wanted[name]), name


CHAMELEON = (
    'text_size=65536,num_codes=8192,codes_at=4,specials={"boi":8197,"eoi":8196,"row_end":8803}'
)
MODES: dict[str, tuple[Callable[[int], Row], dict[str, Any], str, list[str]]] = {
    "interleaved": (interleaved, {}, f"tensordict,length={LENGTH},pad_id=0", ["spans"]),
    "pairs": (
        pairs,
        {"from_": "unidisc,end=false"},
        f"tensordict-pairs,img_length={CODES},txt_length={TEXT},pad_id=0",
        ["tokens", "spans"],
    ),
    "labels": (
        labels,
        {"space": "text_size=1000,num_codes=16384"},
        f"tensordict-labels,img_length={CODES}",
        ["tokens", "spans"],
    ),
    "chameleon": (
        chameleon,
        {"space": CHAMELEON},
        f"tensordict,length={LENGTH},pad_id=-100,codes=shifted,modality=false",
        ["spans", "modality"],
    ),
}
# Overlapping ranks, one of them stopped, ids that are not neighbours, and samples without a file.
RANKS = {
    0: Rank(range(0, 20, 2)),
    1: Rank(range(14, 30), invalid=frozenset({15, 29})),
    10: Rank([40, 41, 42, 43, 7, 9]),
    2: Rank([100, 41, 8, 101, 102], stopped_after=4),
}


tokenize = partial(sm.tokenize, workers=0)


def there_and_back(folder: Path, out: Path, mode: str, **more: Any) -> TensorDict:
    _, adopt, format, drop = MODES[mode]
    tokenize(folder, out / "tokens", **{**adopt, **more})
    sm.export(out / "tokens", out / "tensors", format=format, drop=drop, workers=0)
    return TensorDict.load_memmap(out / "tensors")


@pytest.mark.parametrize("mode", MODES)
def test_a_run_comes_back_as_it_was_merged(tmp_path: Path, mode: str) -> None:
    precompute(tmp_path / "run", MODES[mode][0], RANKS, idx_shape=() if mode == "labels" else (1,))
    found = there_and_back(tmp_path / "run", tmp_path, mode)
    assert_same(found, merged(tmp_path / "run"))
    assert sm.check(tmp_path / "tokens", same=tmp_path / "run").sound
    assert sm.check(tmp_path / "tensors", same=tmp_path / "tokens").sound


def test_resuming_skips_what_came_back(tmp_path: Path) -> None:
    """The next run asks which ids are there, and its parts join those that we wrote."""
    precompute(tmp_path / "run", pairs, RANKS)
    found = there_and_back(tmp_path / "run", tmp_path, "pairs")
    done = set(found["idx"].to(torch.int32).flatten().tolist())
    valid = {*range(0, 20, 2), *range(14, 29), 40, 41, 42, 43, 7, 9, 100, 8, 101} - {15}
    assert done == valid
    left = [id_ for id_ in range(103) if id_ not in done]
    shutil.copytree(tmp_path / "tensors", tmp_path / "next" / "train_existing_1731700000")
    precompute(tmp_path / "next", pairs, {0: Rank(left)})
    parts = [part.clone() for part in parts_of(tmp_path / "next")]
    for part in parts:
        if "write_flag" not in part:
            part["write_flag"] = torch.ones((len(part), 1), dtype=torch.bool)
    whole = torch.cat(parts)  # as combining does, which takes tensors of one kind only
    assert sorted(whole["idx"][whole["idx"] >= 0].tolist()) == list(range(103))
    again = there_and_back(tmp_path / "next", tmp_path / "again", "pairs")
    assert sorted(again["idx"].flatten().tolist()) == list(range(103))


def test_ids_that_each_rank_counts_are_told_by_rank(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = {0: Rank(range(5)), 1: Rank(range(5, 9)), 2: Rank(range(9, 15), stopped_after=3)}
    precompute(run, interleaved, ranks, is_local=True)
    # Rank 1 ended, but what it saved before is still there; rank 2 made its folder in advance.
    precompute(run, interleaved, {1: Rank(range(5, 9), stopped_after=2)}, is_local=True)
    (run / "train_2").mkdir()
    with pytest.raises(ConfigError, match="id 0 has other tokens in train_1 than in train_0"):
        tokenize(run, tmp_path / "refused")
    found = there_and_back(run, tmp_path, "interleaved", from_="unidisc,ids=local")
    assert found["idx"].flatten().tolist() == [*range(5), *range(4), *range(3)]
    assert found["input_ids"].tolist() == [
        interleaved(id_)["input_ids"].tolist() for id_ in range(12)
    ]
    assert len({row.key for row in sm.open(tmp_path / "tokens")}) == 12
    stats = open_manifest(tmp_path / "tokens").stats
    assert stats["passed over|ids of an earlier part"] == 2
    assert stats["passed over|folders that are no parts"] == 1


def test_local_ids_of_a_merged_folder_beside_its_parts_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    precompute(run, interleaved, {0: Rank(range(3)), 1: Rank(range(3, 6))}, is_local=True)
    torch.cat([part.clone() for part in parts_of(run)]).memmap(run / "train")
    with pytest.raises(ConfigError, match="train is what combine_token_dicts made"):
        tokenize(run, tmp_path / "refused", from_="unidisc,ids=local")
    found = there_and_back(run / "train", tmp_path, "interleaved", from_="unidisc,ids=local")
    assert found["idx"].flatten().tolist() == [0, 1, 2, 0, 1, 2]


def test_rows_that_all_have_the_id_0_are_kept_on_demand(tmp_path: Path) -> None:
    precompute(tmp_path / "run", interleaved, {0: Rank(range(4))})
    idx = tmp_path / "run/train_0/idx.memmap"
    idx.write_bytes(np.where(np.fromfile(idx, "<i4") < 0, -1, 0).astype("<i4").tobytes())
    with pytest.raises(ConfigError, match=r"id 0 has other tokens.*ids=local"):
        tokenize(tmp_path / "run", tmp_path / "refused")
    found = there_and_back(tmp_path / "run", tmp_path, "interleaved", from_="unidisc,ids=local")
    assert found["idx"].flatten().tolist() == [0, 0, 0, 0]


def test_folders_without_rows_and_leftovers_do_not_stop_a_merge(tmp_path: Path) -> None:
    run = tmp_path / "run"
    precompute(run, interleaved, RANKS)
    wanted = merged(run)
    allocate(interleaved(0), 0, (1,)).memmap(run / "train_5")  # a rank without samples
    allocate(interleaved(0), 4, (1,)).memmap(run / "tmp_train_6")  # stopped before its first batch
    (run / "train_7").mkdir()
    (run / "val_0").mkdir()
    # Rank 0 ended and was stopped while it removed what it had saved before.
    shutil.copytree(run / "train_0", run / "tmp_train_0")
    (run / "tmp_train_0/meta.json").unlink()
    found = there_and_back(run, tmp_path, "interleaved")
    assert_same(found, wanted)
    (run / "train_0/modality.memmap").write_bytes(b"")
    with pytest.raises(ShardmillError, match=r"train_0/modality\.memmap: has 0 bytes"):
        tokenize(run, tmp_path / "refused", from_="unidisc,skip_broken=true")


def test_what_a_rank_saved_before_stands_in_for_a_part_that_was_cut_off(tmp_path: Path) -> None:
    run = tmp_path / "run"
    precompute(run, interleaved, {0: Rank(range(6)), 1: Rank(range(6, 9))})
    precompute(run, interleaved, {0: Rank(range(6), stopped_after=4)})
    (run / "train_0/meta.json").unlink()  # written last
    with pytest.raises(ShardmillError, match="takes tmp_train_0 in its place"):
        tokenize(run, tmp_path / "refused")
    found = there_and_back(run, tmp_path, "interleaved", from_="unidisc,skip_broken=true")
    assert found["idx"].flatten().tolist() == [6, 7, 8, 0, 1, 2, 3]


def test_a_run_without_any_rows_is_said_to_be_empty(tmp_path: Path) -> None:
    run = tmp_path / "run"
    allocate(interleaved(0), 0, (1,)).memmap(run / "train_0")
    for place in (run, run / "train_0"):
        with pytest.raises(NothingKept, match="it is empty"):
            tokenize(place, tmp_path / f"tokens-{place.name}")


def test_masks_of_bits_are_masks(tmp_path: Path) -> None:
    """The first token is the highest bit, as UniDisc's training takes them apart."""
    run = tmp_path / "run"
    precompute(run, interleaved, RANKS)
    wanted = merged(run)
    precompute(tmp_path / "bits", interleaved, RANKS)
    for folder in (tmp_path / "bits").iterdir():
        if folder.is_dir():
            part = TensorDict.load_memmap(folder).clone()
            for name in ("attention_mask", "modality"):
                bits = (part[name] > 0).reshape(len(part), -1, 8).to(torch.uint8)
                weights = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8)
                part[name] = (bits * weights).sum(dim=2).to(torch.uint8)
            shutil.rmtree(folder)
            part.memmap(folder)
    assert_same(there_and_back(tmp_path / "bits", tmp_path, "interleaved"), wanted)
    assert sm.check(tmp_path / "tokens", same=run).sound


def test_codes_alone_come_back(tmp_path: Path) -> None:
    precompute(tmp_path / "run", image_only, RANKS)
    wanted = merged(tmp_path / "run")
    tokenize(tmp_path / "run", tmp_path / "tokens")
    sm.export(
        tmp_path / "tokens",
        tmp_path / "out",
        format=f"tensordict,length={CODES}",
        drop=["spans"],
        workers=0,
    )
    found = TensorDict.load_memmap(tmp_path / "out")
    for name in ("input_ids", "idx"):
        assert torch.equal(found[name], wanted[name])
    assert (found["modality"] == 1).all() and found["attention_mask"].all()


def test_a_space_that_is_not_theirs_is_refused(tmp_path: Path) -> None:
    precompute(tmp_path / "run", chameleon, {0: Rank(range(3))})
    with pytest.raises(ShardmillError, match=r"which tokens are images.*codes_at=4"):
        tokenize(tmp_path / "run", tmp_path / "refused")
    precompute(tmp_path / "qwen", interleaved, {0: Rank(range(3))})
    ids = tmp_path / "qwen/train_0/input_ids.memmap"
    ids.write_bytes(np.where(np.fromfile(ids, "<i2") == 5000, 32_050, 7).astype("<i2").tobytes())
    with pytest.raises(ShardmillError, match=r"the id 32050 in its text.*--space text_size"):
        tokenize(tmp_path / "qwen", tmp_path / "refused")


def test_a_chameleon_image_is_one_medium_with_its_rows(tmp_path: Path) -> None:
    precompute(tmp_path / "run", chameleon, {0: Rank(range(2))})
    for number, row in enumerate(tokenize(tmp_path / "run", tmp_path / "t", space=CHAMELEON)):
        (span,) = row.media
        height = 2 + number
        assert (span.grid, span.num_tokens) == ((1, height, 4), height * 5)
        assert (span.before, span.after) == (3, 1)
        assert row.ids[span.start] == 8197 and row.ids[span.end - 1] == 8196


def test_another_split_beside_a_merged_one_is_read(tmp_path: Path) -> None:
    """Moved files leave the merged train split in the folder itself."""
    precompute(tmp_path / "run", interleaved, {0: Rank(range(3))})
    train = merged(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    train.memmap(tmp_path / "run")
    train[:1].clone().memmap(tmp_path / "run/val")
    for split, count in (("train", 3), ("val", 1)):
        out = tmp_path / split
        assert len(tokenize(tmp_path / "run", out, from_=f"unidisc,split={split}")) == count


CAPTIONS = [
    "two cats\n",
    "  leading and trailing  ",
    "",
    "Schloß – “quotes” 日本語 🙂",
    "many words " * 30,
    "line one\r\nline two\ttab",
    "x",
    " ",
]


def make_tokenizer(folder: Path) -> Path:
    """Train a byte-level tokenizer that begins and ends texts, as Llama-2 does in UniDisc."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def test_tars_become_the_texts_and_numbers_that_a_run_writes(tmp_path: Path) -> None:
    """By the description: the whole `txt`, begin and end, cut to a block and padded, by number."""
    for number in range(2):
        members: list[tuple[str, bytes]] = []
        for at, caption in enumerate(CAPTIONS[4 * number : 4 * number + 4]):
            image = io.BytesIO()
            Image.new("RGB", (64 + at, 64), (at, 0, 0)).save(image, "JPEG")
            members += [(f"{at}.jpg", image.getvalue()), (f"{at}.txt", caption.encode())]
        (tmp_path / f"x-{number}.tar").write_bytes(tar_bytes(members))
    tokenizer_dir = make_tokenizer(tmp_path / "tokenizer")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_dir / "tokenizer.json"))
    theirs.add_special_tokens({"pad_token": "[PAD]"})
    size = len(theirs)
    marker = {"image": size - 2}
    wanted = theirs(CAPTIONS, max_length=TEXT, padding="max_length", truncation=True)

    write_llamagen(tmp_path / "vq.pt")
    sm.ingest(f"{tmp_path}/x-*.tar", tmp_path / "shards", workers=0)
    codes = sm.codes(
        tmp_path / "shards",
        tmp_path / "codes",
        weights=tmp_path / "vq.pt",
        resolution=8,  # this small model has a code for 2 x 2 pixels
        workers=0,
    )
    tokenize(
        tmp_path / "shards",
        tmp_path / "tokens",
        tokenizer=str(tokenizer_dir),
        template="pair",
        layout="marker",
        codes=tmp_path / "codes",
        space={"text_size": size, "num_codes": SMALL_LLAMAGEN.num_codes, "specials": marker},
    )
    format = f"tensordict-pairs,img_length={CODES},txt_length={TEXT},pad_id={size - 1}"
    format += ",overlong=cut,end_id=2"
    sm.export(
        tmp_path / "tokens",
        tmp_path / "out",
        format=format,
        drop=["tokens", "spans"],
        workers=0,
    )
    found = TensorDict.load_memmap(tmp_path / "out")
    assert found["txt_input_ids"].tolist() == wanted["input_ids"]
    assert found["txt_attention_mask"].int().tolist() == wanted["attention_mask"]
    assert found["idx"].tolist() == [[number] for number in range(len(CAPTIONS))]
    assert found["img_input_ids"].tolist() == [
        images[0].codes.reshape(-1).tolist() for images in codes
    ]
