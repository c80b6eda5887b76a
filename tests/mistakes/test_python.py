"""What a user may get wrong in Python: the verbs, `sm.open`, `sm.loader`, `Collate` and `Mix`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mistaken import prepare

import shardmill as sm

# Python's own errors for what is wrong in any program: names and numbers of arguments, lookups.
OF_PYTHON = (TypeError, ValueError, KeyError, IndexError, AttributeError, OSError)


@dataclass(frozen=True)
class Said:
    """An expression, the finished folders that it uses, and words that its error must hold."""

    types: str
    uses: str
    words: tuple[str, ...]


def said(name: str, types: str, *words: str, uses: str = "") -> Any:
    return pytest.param(Said(types, uses, words), id=name)


LOADED = "sm.loader('packs.plan', 'tokens', collate='torch'"
PACKED = "sm.PackedDataset('packs.plan', 'tokens')"
TRAIN = "tokens packs.plan"

VERBS = [
    said(
        "python: an argument that nobody knows",
        "sm.ingest('texts.jsonl', 'out', pershard=3)",
        "pershard",
        uses="texts.jsonl",
    ),
    said("python: no output", "sm.ingest('texts.jsonl')", "out", uses="texts.jsonl"),
    said("python: no input", "sm.ingest([], 'out')", "no input"),
    said("python: rows instead of a table", "sm.ingest([{'text': 'a'}], 'out')", "path"),
    said("python: none for a place", "sm.ingest(None, 'out')", "no input"),
    said("python: a number for a place", "sm.ingest('texts.jsonl', 3)", "path", uses="texts.jsonl"),
    said(
        "python: a number as text",
        "sm.ingest('texts.jsonl', 'out', per_shard='4', workers=0)",
        "per_shard",
        uses="texts.jsonl",
    ),
    said(
        "python: no rows in a shard",
        "sm.ingest('texts.jsonl', 'out', per_shard=0, workers=0)",
        "per_shard",
        uses="texts.jsonl",
    ),
    said(
        "python: fewer than no rows",
        "sm.ingest('texts.jsonl', 'out', limit=-1, workers=0)",
        "limit",
        uses="texts.jsonl",
    ),
    said(
        "python: fewer than no workers",
        "sm.ingest('texts.jsonl', 'out', workers=-1)",
        "workers",
        uses="texts.jsonl",
    ),
    said(
        "python: half a worker",
        "sm.ingest('texts.jsonl', 'out', workers=0.5)",
        "workers",
        uses="texts.jsonl",
    ),
    said(
        "python: percent of skips",
        "sm.ingest('texts.jsonl', 'out', max_skip_rate=10, workers=0)",
        "max_skip_rate",
        uses="texts.jsonl",
    ),
    said(
        "python: a part that is none",
        "sm.ingest('texts.jsonl', 'out', part='3', workers=0)",
        "part",
        uses="texts.jsonl",
    ),
    said(
        "python: an engine that nobody knows",
        "sm.ingest('texts.jsonl', 'out', on='kubernetes')",
        "kubernetes",
        "ray",
        uses="texts.jsonl",
    ),
    said(
        "python: a filter that nobody knows",
        "sm.ingest('texts.jsonl', 'out', filter='short', workers=0)",
        "short",
        "text_length",
        uses="texts.jsonl",
    ),
    said(
        "python: a filter as a table without a kind",
        "sm.ingest('texts.jsonl', 'out', filter={'min_chars': 3}, workers=0)",
        "kind",
        uses="texts.jsonl",
    ),
    said(
        "python: a filter as a function",
        "sm.filter('texts', 'out', filter=lambda sample: True, workers=0)",
        "filter",
        uses="texts",
    ),
    said(
        "python: a layout that nobody knows",
        "sm.ingest('texts.jsonl', 'out', layout='flat', workers=0)",
        "flat",
        "dotted",
        uses="texts.jsonl",
    ),
    said(
        "python: a format that nobody knows",
        "sm.frames('films', 'out', format='png', workers=0)",
        "png",
        "jpg",
        uses="films",
    ),
    said(
        "python: a quality that is none",
        "sm.frames('films', 'out', quality=1000, workers=0)",
        "quality",
        uses="films",
    ),
    said(
        "python: a precision that nobody knows",
        "sm.codes('pairs', 'out', tokenizer='chameleon,weights=vq', precision='bf16', workers=0)",
        "bf16",
        "fp16",
        uses="pairs vq",
    ),
    said(
        "python: what becomes of overlong rows misspelt",
        "sm.tokenize('texts', 'out', max_length=9, overlong='truncate', workers=0)",
        "truncate",
        "cut",
        uses="texts",
    ),
    said(
        "python: a length of nothing",
        "sm.tokenize('texts', 'out', max_length=0, workers=0)",
        "max_length",
        uses="texts",
    ),
    said(
        "python: tokens where samples are needed",
        "sm.tokenize(sm.open('tokens'), 'out', workers=0)",
        "tokens",
        "samples",
        uses="tokens",
    ),
    said(
        "python: a plan of samples",
        "sm.plan(sm.open('texts'), 'out.plan', capacity=64)",
        "texts",
        "tokens",
        uses="texts",
    ),
    said("python: a plan of nothing", "sm.plan([], 'out.plan', capacity=64)", "length"),
    said("python: a plan of negative lengths", "sm.plan([3, -1], 'out.plan', capacity=64)", "-1"),
    said(
        "python: a plan of fractions", "sm.plan([3.5, 1], 'out.plan', capacity=64)", "whole numbers"
    ),
    said("python: a plan of words", "sm.plan(['a', 'b'], 'out.plan', capacity=64)", "num_tokens"),
    said(
        "python: a plan of a square",
        "sm.plan([[1, 2], [3, 4]], 'out.plan', capacity=64)",
        "num_tokens",
    ),
    said(
        "python: more visual tokens than tokens",
        "sm.plan({'num_tokens': [3], 'num_visual': [9]}, 'out.plan', capacity=64)",
        "num_visual",
    ),
    said(
        "python: columns of other lengths",
        "sm.plan({'num_tokens': [3, 4], 'num_visual': [1]}, 'out.plan', capacity=64)",
        "num_visual",
    ),
    said(
        "python: a source without a name",
        "sm.plan({'num_tokens': [3], 'source': [2], 'source_names': ['a']}, 'p.plan', capacity=9)",
        "source",
    ),
    said("python: a pack of nothing", "sm.plan([3], 'out.plan', capacity=0)", "capacity"),
    said("python: a pack as text", "sm.plan([3], 'out.plan', capacity='8k')", "capacity"),
    said("python: a plan without a capacity", "sm.plan([3], 'out.plan')", "capacity"),
    said(
        "python: overlong misspelt",
        "sm.plan([3], 'out.plan', capacity=2, overlong='truncate')",
        "truncate",
        "cut",
    ),
    said(
        "python: packs of a format that nobody knows",
        "sm.pack('tokens', 'packs.plan', 'out', format='webdataset', workers=0)",
        "webdataset",
        "tar",
        uses=TRAIN,
    ),
    said(
        "python: no packs in a shard",
        "sm.pack('tokens', 'packs.plan', 'out', packs_per_shard=0, workers=0)",
        "packs_per_shard",
        uses=TRAIN,
    ),
    said(
        "python: an export without a format", "sm.export('tokens', 'out')", "format", uses="tokens"
    ),
    said(
        "python: no shards",
        "sm.export('tokens', 'out', format='hf', shards=0, workers=0)",
        "shards",
        uses="tokens",
    ),
    said(
        "python: keys as a list",
        "sm.remove('texts', 'out', keys=['texts-00000000'], workers=0)",
        "path",
        "texts-00000000",
        uses="texts",
    ),
    said(
        "python: comparing with nothing",
        "sm.check('tokens', same='nowhere')",
        "nowhere",
        uses="tokens",
    ),
    said(
        "python: ignoring what nobody knows",
        "sm.check('tokens', same='tokens', ignore='mask')",
        "mask",
        "loss",
        uses="tokens",
    ),
    said(
        "python: decoding fewer than none",
        "sm.check('pairs', decode=-1, workers=0)",
        "decode",
        uses="pairs",
    ),
    said("python: a recipe that is not there", "sm.run('recipe.toml')", "recipe.toml"),
    said("python: a verb that is not there", "sm.injest('a', 'b')", "injest"),
    said("python: trusting what is no class", "sm.trust('nowhere')", "nowhere", "module:Class"),
]

OPENED = [
    said("python: opening nothing", "sm.open('nowhere')", "nowhere"),
    said(
        "python: opening a raw table",
        "sm.open('texts.jsonl')",
        "texts.jsonl",
        "sm.ingest",
        uses="texts.jsonl",
    ),
    said(
        "python: an item of a folder of several stages",
        "sm.open('.')['packs']",
        "texts",
        "tokens",
        uses="texts tokens",
    ),
    said("python: an item past the end", "sm.open('texts')[6]", "6", uses="texts"),
    said("python: a key of nobody", "sm.open('texts')['nobody']", "nobody", uses="texts"),
    said("python: an item by a fraction", "sm.open('texts')[1.5]", "float", uses="texts"),
    said("python: keys of a plan", "list(sm.open('packs.plan').keys())", "keys", uses=TRAIN),
]

LOADER = [
    said("loader: no trainer", "sm.loader('packs.plan', 'tokens')", "collate=", uses=TRAIN),
    said("loader: no data", "sm.loader('packs.plan')", "loader(plan, data)", uses=TRAIN),
    said(
        "loader: tokens and plan swapped", "sm.loader('tokens', 'packs.plan')", "plan", uses=TRAIN
    ),
    said(
        "loader: a plan of other data",
        "sm.loader('pixels.plan', 'tokens', collate='torch')",
        "plan of another data set",
        uses="tokens pixels.plan",
    ),
    said(
        "loader: a plan that is not there",
        "sm.loader('no.plan', 'tokens')",
        "no.plan",
        uses="tokens",
    ),
    said(
        "loader: samples without a processor",
        "sm.loader('pixels.plan', 'chats')",
        "processor",
        uses="chats pixels.plan lengths",
    ),
    said(
        "loader: samples without their lengths",
        "sm.loader('pixels.plan', 'chats', processor='model')",
        "lengths",
        uses="chats pixels.plan",
    ),
    said(
        "loader: packs instead of tokens",
        "sm.loader('packs.plan', 'packs')",
        "packs",
        uses="packs packs.plan",
    ),
    said("loader: a batch of nothing", f"{LOADED}, batch_size=0)", "batch_size", uses=TRAIN),
    said("loader: a rank without a world", f"{LOADED}, rank=1)", "rank", "world", uses=TRAIN),
    said("loader: a rank outside of the world", f"{LOADED}, rank=2, world=2)", "rank", uses=TRAIN),
    said("loader: a world of nobody", f"{LOADED}, rank=0, world=0)", "0 ranks", uses=TRAIN),
    said(
        "loader: a remainder that nobody knows",
        f"{LOADED}, remainder='keep')",
        "keep",
        "borrow",
        uses=TRAIN,
    ),
    said(
        "loader: a collate that nobody knows",
        "sm.loader('packs.plan', 'tokens', collate='hf')",
        "hf",
        "transformers",
        uses=TRAIN,
    ),
    said(
        "loader: an option that nobody knows", f"{LOADED}, num_worker=2)", "num_worker", uses=TRAIN
    ),
    said(
        "loader: workers in two words",
        f"{LOADED}, workers=1, num_workers=2)",
        "workers",
        uses=TRAIN,
    ),
    said("loader: fewer than no workers", f"{LOADED}, workers=-1)", "workers", uses=TRAIN),
    said("loader: shuffled once more", f"{LOADED}, shuffle=True)", "shuffle", uses=TRAIN),
    said("loader: a sampler of one's own", f"{LOADED}, sampler=[0])", "sampler", uses=TRAIN),
    said(
        "loader: the last batch dropped",
        f"{LOADED}, drop_last=True)",
        "drop_last",
        "remainder",
        uses=TRAIN,
    ),
    said(
        "loader: lengths for tokens of other data",
        f"{LOADED}, lengths='lengths')",
        "lengths",
        uses=f"{TRAIN} lengths",
    ),
    said(
        "loader: a processor for tokens", f"{LOADED}, processor='model')", "processor", uses=TRAIN
    ),
    said(
        "loader: images that are not those of the tokens",
        "next(iter(sm.loader(sm.plan('chat-tokens', 'c.plan', capacity=999), 'chat-tokens',"
        " images='pairs', max_faults=0, collate='torch')))",
        "chats-00000000",
        uses="chat-tokens pairs",
    ),
    said("loader: a copy over the data", f"{LOADED}, staged_dir='tokens')", "tokens", uses=TRAIN),
    said(
        "loader: no room for copies",
        f"{LOADED}, staged_dir='local', staged_bytes=-1)",
        "staged_bytes",
        uses=TRAIN,
    ),
    said(
        "loader: room for copies, but no place",
        f"{LOADED}, staged_bytes=100)",
        "staged_dir",
        uses=TRAIN,
    ),
    said("loader: fewer than no faults", f"{LOADED}, max_faults=-1)", "max_faults", uses=TRAIN),
    said(
        "loader: the state of another seed",
        f"{LOADED}, seed=1).load_state_dict({LOADED}).state_dict())",
        "seed",
        uses=TRAIN,
    ),
    said(
        "loader: the state of something else",
        f"{LOADED}).load_state_dict({{'epoch': 3}})",
        "state",
        uses=TRAIN,
    ),
    said("loader: the state of nothing", f"{LOADED}).load_state_dict(None)", "state", uses=TRAIN),
    said(
        "loader: a pack longer than the batch",
        "next(iter(sm.loader('packs.plan', 'tokens', collate=sm.Collate('torch', length=8))))",
        "batch has 8",
        "capacity",
        uses=TRAIN,
    ),
    said("loader: an epoch before the first", f"{LOADED}).begin_epoch(-1)", "epoch", uses=TRAIN),
    said("collate: a trainer that nobody knows", "sm.Collate('flash')", "flash", "megatron"),
    said("collate: multiples of nothing", "sm.Collate('nemo', multiple_of=0)", "multiple_of"),
    said("collate: a length of nothing", "sm.Collate('nemo', length=0)", "length"),
    said("collate: no chunks", "sm.Collate('nemo', num_chunks=0)", "num_chunks"),
    said("collate: a type as text", "sm.Collate('nemo', media_dtype='bf16')", "media_dtype"),
    said("collate: a padding that is no id", "sm.Collate('nemo', pad_id=-1)", "pad_id"),
    said("collate: no trainer", "sm.Collate()", "trainer"),
    said(
        "collate: samples instead of packs",
        "sm.Collate('torch')(list(sm.open('texts')))",
        "pack",
        uses="texts",
    ),
    said("collate: nothing", "sm.Collate('torch')([])", "pack"),
    said("mix: no sources", "sm.Mix({}, {})", "source"),
    said(
        "mix: weights of others", f"sm.Mix({{'a': {PACKED}}}, {{'b': 1}})", "'a'", "'b'", uses=TRAIN
    ),
    said(
        "mix: no weight at all",
        f"sm.loader(sm.Mix({{'a': {PACKED}}}, {{'a': 0}}), collate='torch')",
        "weight",
        uses=TRAIN,
    ),
    said(
        "mix: a negative weight",
        f"sm.loader(sm.Mix({{'a': {PACKED}}}, {{'a': -1}}), collate='torch')",
        "weight",
        uses=TRAIN,
    ),
    said(
        "mix: weights that are no numbers",
        f"sm.Mix({{'a': {PACKED}}}, {{'a': 'half'}})",
        "half",
        uses=TRAIN,
    ),
    said("mix: weights as a list", f"sm.Mix({{'a': {PACKED}}}, [1])", "weights", uses=TRAIN),
    said(
        "mix: a path for a source",
        "sm.Mix({'a': 'packs.plan'}, {'a': 1})",
        "PackedDataset",
        uses=TRAIN,
    ),
    said("mix: sources as a list", f"sm.Mix([{PACKED}], [1])", "sources", uses=TRAIN),
    said(
        "mix: data beside a mix",
        f"sm.loader(sm.Mix({{'a': {PACKED}}}, {{'a': 1}}), 'tokens', collate='torch')",
        "data",
        uses=TRAIN,
    ),
    said(
        "mix: its length",
        f"len(sm.loader(sm.Mix({{'a': {PACKED}}}, {{'a': 1}}), collate='torch'))",
        "length",
        uses=TRAIN,
    ),
    said(
        "stream: samples that are tokens",
        "next(iter(sm.SampleStream('tokens', batch_size=1)))",
        "tokens",
        "samples",
        uses="tokens",
    ),
    said("rows: samples", "sm.RowDataset('texts')[0]", "texts", "tokens", uses="texts"),
]


@pytest.mark.parametrize("row", [*VERBS, *OPENED, *LOADER])
def test_mistake(row: Said, tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare({}, row.uses, tmp_path, world)
    sys.stdout.write(f">>> {row.types}\n")
    with pytest.raises(Exception) as raised:  # its kind and its words are looked at below
        eval(row.types, {"sm": sm})
    text = str(raised.value).replace(f"{tmp_path}/", "")
    sys.stdout.write(f"{type(raised.value).__name__}: {text}\n")
    missing = [word for word in row.words if word.lower() not in text.lower()]
    assert not missing, f"{missing} not said in: {text}"
    assert isinstance(raised.value, (sm.ShardmillError, *OF_PYTHON)), repr(raised.value)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out.plan").exists()
