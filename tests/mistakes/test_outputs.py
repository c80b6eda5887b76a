"""What may go wrong with what was made: exports, comparisons, damage, moves, recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mistaken import (
    IMAGES,
    Case,
    Check,
    case,
    either,
    prints,
    refused,
    right,
    try_case,
)

import shardmill as sm

TEXTS = [{"text": f"Text number {number}. " * (number + 1)} for number in range(6)]
PAIRS = [
    {"image": f"{name}.png", "caption": f"A {name} square."} for name in ("red", "green", "blue")
]


def same_as(folder: str, *aspects: str) -> Check:
    """Check that the export holds what the folder holds, in these aspects at least."""

    def check(place: Path, printed: str) -> None:
        found = sm.check("out", same=folder).comparison
        assert found is not None and found.same, found
        assert {*aspects} <= {*found.compared}, found

    return check


FORMATS = (
    "megatron",
    "hf",
    "hf,files=parquet",
    "tensordict,length=512,pad_id=0",
    "webdataset",
    "energon",
    "mds",
    "litdata",
)
EXPORTS = [
    *(
        case(
            f"loss masks in {format}",
            f"export chat-tokens out --format '{format}'",
            either(refused("loss"), right(same_as("chat-tokens", "tokens", "loss"))),
            uses="chat-tokens",
        )
        for format in FORMATS
    ),
    *(
        case(
            f"codes of images in {format}",
            f"export coded out --format '{format}'",
            either(refused("loss"), right(same_as("coded", "tokens", "loss"))),
            uses="coded",
        )
        for format in FORMATS
    ),
    case(
        "an export that nobody knows",
        "export tokens out --format parquet",
        refused("parquet", "hf"),
        uses="tokens",
    ),
    case(
        "an export with a field that is not there",
        "export tokens out --format megatron,name=train",
        refused("name", "prefix"),
        uses="tokens",
    ),
    case("an export without a format", "export tokens out", refused("--format"), uses="tokens"),
    case(
        "ids that do not fit the type",
        "export chat-tokens out --format megatron,dtype=uint8",
        refused("uint8"),
        uses="chat-tokens",
    ),
    case(
        "a prefix that climbs out",
        "export tokens out --format megatron,prefix=../train",
        refused("../train"),
        uses="tokens",
    ),
    case(
        "rows of one length without a length",
        "export tokens out --format tensordict",
        refused("length"),
        uses="tokens",
    ),
    case(
        "rows longer than the one length",
        "export tokens out --format tensordict,length=8,pad_id=0",
        refused("a row holds 8", "length"),
        uses="tokens",
    ),
    case(
        "a padding id outside of the vocabulary",
        "export tokens out --format tensordict,length=512,pad_id=-7",
        refused("pad_id"),
        uses="tokens",
    ),
    case(
        "liquid without codes",
        "export pairs out --format liquid",
        refused("--codes"),
        uses="pairs",
    ),
    case(
        "liquid with codes of another size",
        "export pairs out --format liquid --codes codes",
        refused("512", "vqcode_multi768"),
        uses="pairs codes",
    ),
    case(
        "liquid with codes of other samples",
        "ingest others.jsonl others && "
        "export others out --format liquid,column=vqcode_multi768 --codes codes",
        refused("codes", "others-00000000"),
        has={**IMAGES, "others.jsonl": PAIRS},
        uses="codes",
    ),
    case(
        "codes for an export of tokens",
        "export tokens out --format megatron --codes codes",
        refused("codes"),
        uses="tokens codes",
    ),
    case(
        "more shards than rows",
        "export tokens out --format megatron --shards 99",
        either(refused("--shards", "6"), right(same_as("tokens", "tokens"))),
        uses="tokens",
    ),
    case(
        "another format into the same folder",
        "export tokens megatron --format hf",
        refused("format", out="nowhere"),
        uses="tokens megatron",
    ),
    case(
        "an export of an export",
        "export megatron out --format hf",
        either(refused("megatron"), right(same_as("megatron", "tokens"))),
        uses="megatron",
    ),
]

NEW = "ingest new/texts.jsonl other --shape text --per-shard 2"
SAME = "check --same texts other"


def _differs(name: str, rows: list[Any], *words: str, before: str = NEW, same: str = SAME) -> Any:
    return case(
        f"compared: {name}",
        f"{before} && {same}",
        refused("differ", *words, out="nowhere"),
        has={**IMAGES, before.split()[1] if "jsonl" in before else "unused": rows},
        uses="texts pairs chats tokens chat-tokens",
    )


PAIRED = "ingest new/pairs.jsonl other --media-root ."
CHATTED = "ingest new/chats.jsonl other --media-root ."
TOLD = {"from": "human", "value": "<image>\nWhich colour?"}


def _chat(*turns: dict[str, str]) -> list[dict[str, Any]]:
    return [{"image": "red.png", "conversations": list(turns)}]


COMPARED = [
    case(
        "compared: nothing differs",
        f"{NEW} && {SAME}",
        right(prints("the same", "compared", "keys", "text")),
        has={"new/texts.jsonl": TEXTS},
        uses="texts",
    ),
    _differs("a letter", [*TEXTS[:5], {"text": TEXTS[5]["text"].upper()}], "5"),
    _differs("a blank at the end", [*TEXTS[:5], {"text": TEXTS[5]["text"] + " "}], "5"),
    _differs("the order of rows", [TEXTS[1], TEXTS[0], *TEXTS[2:]], "0"),
    _differs("a row too few", TEXTS[:5], "5"),
    _differs("a row too many", [*TEXTS, TEXTS[0]], "6"),
    _differs("a row twice", [TEXTS[0], *TEXTS], "1"),
    _differs("keys", TEXTS, "texts-00000000", before=NEW.replace("texts", "others")),
    case(
        "compared: keys that are not to be compared",
        f"{NEW.replace('texts', 'others')} && {SAME} --ignore keys",
        right(prints("the same")),
        has={"new/others.jsonl": TEXTS},
        uses="texts",
    ),
    _differs(
        "an image",
        [PAIRS[0], {**PAIRS[1], "image": "grey.png"}, PAIRS[2]],
        "pairs-00000001",
        before=PAIRED,
        same="check --same pairs other",
    ),
    _differs(
        "a caption",
        [PAIRS[0], {**PAIRS[1], "caption": "Green."}, PAIRS[2]],
        "pairs-00000001",
        before=PAIRED,
        same="check --same pairs other",
    ),
    _differs(
        "a caption that is missing",
        [PAIRS[0], {"image": "green.png"}, PAIRS[2]],
        "pairs-00000001",
        before=PAIRED,
        same="check --same pairs other",
    ),
    _differs(
        "a role",
        _chat(TOLD, {"from": "system", "value": "It is red."}),
        "chats-00000000",
        before=CHATTED,
        same="check --same chats other",
    ),
    _differs(
        "the place of an image",
        _chat(
            {"from": "human", "value": "\nWhich colour?<image>"},
            {"from": "gpt", "value": "It is red."},
        ),
        "chats-00000000",
        before=CHATTED,
        same="check --same chats other",
    ),
    _differs(
        "an end token",
        TEXTS,
        "texts-00000000",
        before="tokenize texts other --template text,eos=false",
        same="check --same tokens other",
    ),
    _differs(
        "a beginning token",
        TEXTS,
        "texts-00000000",
        before="tokenize texts other --template text,bos=true",
        same="check --same tokens other",
    ),
    _differs(
        "what is learned",
        TEXTS,
        "loss",
        before="tokenize chats other --template chat,learn=all --layout patches "
        '--space \'added=["im_patch","im_start","im_end"]\'',
        same="check --same chat-tokens other",
    ),
    _differs(
        "where rows end",
        TEXTS,
        "texts-00000002",
        before="tokenize texts other --block-size 16",
        same="check --same tokens other",
    ),
    case(
        "compared: samples with tokens",
        "check --same texts tokens",
        refused("compare", out="nowhere"),
        uses="texts tokens",
    ),
    case(
        "compared: an aspect that nobody knows",
        "check --same tokens tokens --ignore mask",
        refused("mask", "loss", out="nowhere"),
        uses="tokens",
    ),
    case(
        "compared: a folder with itself",
        "check --same tokens tokens",
        either(refused("itself", out="nowhere"), right(prints("the same"))),
        uses="tokens",
    ),
    case(
        "compared: a folder that is not finished",
        "rm texts/manifest.json && check --same tokens texts",
        refused("texts", out="nowhere"),
        uses="texts tokens",
    ),
]


def flip(path: Path) -> None:
    """Change a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x20
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


FILES = (
    "pairs/shards/000000.tar",
    "pairs/shards/000000.idx",
    "codes/shards/000000.codes",
    "tokens/shards/000001.bin",
    "tokens/shards/000001.idx",
    "tokens/shards/000001.spans",
    "packs/shards/00000.bin",
    "packs/shards/00000.spans",
    "lengths/lengths.bin",
    "megatron/shards/00000.bin",
    "megatron/shards/00000.idx",
    "tokens/manifest.json",
    "tokens/stage.json",
    "tokens/units.jsonl",
    "tokens/receipts/000001.json",
)
DAMAGES: dict[str, Callable[[Path], None]] = {
    "changed": flip,
    "cut": cut,
    "empty": empty,
    "gone": Path.unlink,
}


def _damaged(file: str, how: str) -> Any:
    folder, _, _ = file.partition("/")
    return case(
        f"{file} is {how}",
        f"check {folder}",
        refused(Path(file).name.partition(".")[0], out="nowhere"),
        has={"done": lambda path: DAMAGES[how](path.parent / file)},
        uses=folder,
    )


READS = {
    "pairs/shards/000000.tar": "tokenize pairs out --template pair --layout patches "
    '--space \'added=["im_patch","im_start","im_end"]\'',
    "pairs/shards/000000.idx": "filter pairs out --drop-duplicates",
    "codes/shards/000000.codes": "export pairs out --codes codes "
    "--format liquid,column=vqcode_multi768",
    "tokens/shards/000001.bin": "export tokens out --format hf",
    "tokens/shards/000001.idx": "plan tokens out --capacity 128",
    "tokens/shards/000001.spans": "pack tokens packs.plan out",
    "tokens/manifest.json": "plan tokens out --capacity 128",
    "lengths/lengths.bin": "plan lengths out --capacity 512",
    "packs.plan": "pack tokens packs.plan out",
}


def _read_when_damaged(file: str, command: str, how: str) -> Any:
    return case(
        f"{file} is {how} and read by {command.partition(' ')[0]}",
        command,
        refused("tokens" if "manifest" in file else Path(file).name.partition(".")[0]),
        has={"done": lambda path: DAMAGES[how](path.parent / file)},
        uses=" ".join({file.partition("/")[0], "pairs", "tokens", "packs.plan"}),
    )


DAMAGED = [
    *(_damaged(file, how) for file in FILES for how in DAMAGES),
    *(_read_when_damaged(file, READS[file], how) for file in READS for how in ("cut", "gone")),
]

MADE = "ingest p/rows.jsonl p/shards && tokenize p/shards p/tokens && plan p/tokens p/packs.plan"
MADE += " --capacity 128 && pack p/tokens p/packs.plan p/packs"
AGAIN = right(prints("nothing to do"))
ROWS = {"p/rows.jsonl": TEXTS}
MOVED = [
    case(
        "ingested, moved, run again",
        f"{MADE} && mv p q && ingest q/rows.jsonl q/shards",
        AGAIN,
        has=ROWS,
    ),
    case(
        "tokenized, moved, run again",
        f"{MADE} && mv p q && tokenize q/shards q/tokens",
        AGAIN,
        has=ROWS,
    ),
    case(
        "planned, moved, planned again",
        f"{MADE} && mv p q && plan q/tokens q/packs.plan --capacity 128",
        right(prints("pack of 128")),
        has=ROWS,
    ),
    case(
        "packed, moved, run again",
        f"{MADE} && mv p q && pack q/tokens q/packs.plan q/packs",
        AGAIN,
        has=ROWS,
    ),
    case(
        "moved and shown",
        f"{MADE} && mv p q && show q/packs",
        right(prints("Text number")),
        has=ROWS,
    ),
    case(
        "moved and checked", f"{MADE} && mv p q && check q/packs", right(prints("sound")), has=ROWS
    ),
    case(
        "moved and asked for its status",
        f"{MADE} && mv p q && status q/tokens",
        right(prints("complete")),
        has=ROWS,
    ),
    case(
        "moved and asked why",
        f"{MADE} && mv p q && why q/packs.plan --data q/tokens --step 0",
        right(prints("rows.jsonl")),
        has=ROWS,
    ),
    case(
        "only the shards were moved",
        f"{MADE} && mv p/shards elsewhere && tokenize elsewhere p/tokens",
        AGAIN,
        has=ROWS,
    ),
    case(
        "run again from another folder",
        f"{MADE} && cd p && ingest rows.jsonl shards && tokenize shards tokens",
        AGAIN,
        has=ROWS,
    ),
    case(
        "run again with a path typed another way",
        f"{MADE} && ingest ./p/../p/rows.jsonl p/shards/ && tokenize p//shards/ ./p/tokens",
        AGAIN,
        has=ROWS,
    ),
    case(
        "the table has changed since",
        f"{MADE} && mv more.jsonl p/rows.jsonl && ingest p/rows.jsonl p/shards",
        refused("rows.jsonl", "changed", out="nowhere"),
        has={**ROWS, "more.jsonl": [*TEXTS, TEXTS[0]]},
    ),
    case(
        "the shards are others since",
        f"{MADE} && ingest more.jsonl more && mv p/shards old && mv more p/shards && "
        "tokenize p/shards p/tokens",
        refused("shards", out="nowhere"),
        has={**ROWS, "more.jsonl": [*TEXTS, TEXTS[0]]},
    ),
    case(
        "the tokens are others since the plan",
        f"{MADE} && tokenize p/shards p/more --block-size 8 && mv p/tokens old && "
        "mv p/more p/tokens && pack p/tokens p/packs.plan p/again",
        refused("this plan", "p/tokens", out="p/again"),
        has=ROWS,
    ),
]

STEP = '[[step]]\nverb = "ingest"\nin = "rows.jsonl"\nout = "out"\n'


def _recipe(name: str, text: str, *words: str) -> Any:
    return case(
        f"a recipe: {name}",
        "run recipe.toml",
        refused(*words),
        has={"recipe.toml": text, "rows.jsonl": TEXTS},
    )


RECIPES = [
    _recipe("no steps", 'title = "x"\n', "step"),
    _recipe("no toml", "[[step]\n", "line 1"),
    _recipe("a verb that nobody knows", STEP.replace("ingest", "injest"), "injest", "ingest"),
    _recipe("a step without a verb", '[[step]]\nin = "a"\nout = "b"\n', "verb"),
    _recipe("a step without an output", STEP.replace('out = "out"\n', ""), "out"),
    _recipe("an option that nobody knows", STEP + "pershard = 3\n", "pershard", "per"),
    _recipe("a word for a number", STEP + 'per-shard = "many"\n', "per"),
    _recipe(
        "an input that is not there",
        STEP.replace("rows.jsonl", "row.jsonl"),
        "step 1",
        "row.jsonl",
        "rows.jsonl",
    ),
    _recipe(
        "steps in the wrong order",
        '[[step]]\nverb = "tokenize"\nin = "out"\nout = "tokens"\n' + STEP,
        "step 1",
        "'out'",
    ),
    _recipe(
        "two steps into one folder",
        STEP + STEP.replace("[[step]]", "[[step]]\nlimit = 3"),
        "step 2",
        "out",
    ),
    _recipe("options of nobody under run", f"[run]\nworker = 2\n{STEP}", "worker", "workers"),
    _recipe("a price of nobody", f"[prices]\ngpu = 2\n{STEP}", "gpu"),
    _recipe("a table misspelt", STEP.replace("[[step]]", "[[steps]]"), "step"),
    case("a recipe: not there", "run recipe.toml", refused("recipe.toml")),
    case("a recipe: a folder", "run recipe", refused("recipe"), has={"recipe/a.toml": STEP}),
]


@pytest.mark.parametrize("row", [*EXPORTS, *COMPARED, *DAMAGED, *MOVED, *RECIPES])
def test_mistake(row: Case, tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_case(row, tmp_path, world)
