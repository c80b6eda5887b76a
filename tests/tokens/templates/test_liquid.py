"""The preset "liquid" against what Liquid's collater does, said again here with transformers alone.

It hands whole strings to the tokenizer, control tokens and all, and puts the codes between the ids.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded
from transformers import PreTrainedTokenizerFast

import shardmill as sm
from shardmill.model.sample import Sample
from shardmill.tokens.text.tokenizer import PROBES

CONTROL = ("<boi>", "<eoi>", "<unconditional>")
POOL = ["Draw what was said.", "Zeichne das bitte — 絵を描いて!", "Now  as a picture"]
ROWS: TypeAlias = dict[str, tuple[list[int], list[int]]]  # name of the task: ids, labels


def liquid_rows(tokenizer: Any, text: str, codes: list[int] | None) -> ROWS:
    """Return ids and labels of all that Liquid may make of a row: its dice choose one of them."""

    def ids(string: str) -> list[int]:
        found: list[int] = tokenizer(string).input_ids
        return found

    if codes is None:
        return {"text": (ids(text), ids(text))}
    shifted = [code + len(tokenizer) for code in codes]
    rows: ROWS = {}
    asked = {instruction: f"{text} {instruction}" for instruction in POOL}
    for name, prompt in {**asked, "unconditional": "<unconditional>"}.items():
        *head, eoi, eos = ids(prompt + "<boi><eoi>" + tokenizer.eos_token)
        rows[name] = [*head, *shifted, eoi, eos], [-100] * len(head) + [*shifted, eoi, eos]
    bos, boi, *prompt_ids = ids("<boi><eoi>The caption of this image is:")
    caption = ids(text + tokenizer.eos_token)[1:]
    head = [bos, boi, *shifted, *prompt_ids]
    rows["i2t"] = head + caption, [-100] * len(head) + caption
    return rows


def texts(count: int, seed: int) -> list[str]:
    """Return random texts of many scripts; some are empty, or begin and end with spaces."""
    dice = random.Random(seed)
    words = [word for probe in PROBES for word in probe.split(" ")]
    made = [
        "",
        " ",
        "\n",
        "no",
        "a",
        "\u2581",
        "A cat.",
        " A cat. ",
        "<b>bold</b>",
        "<table>\n\n\n",
    ]
    while len(made) < count:
        made.append(dice.choice(["", " "]) + " ".join(dice.choices(words, k=dice.randrange(1, 12))))
    return made


def liquid_tokenizer(folder: Path, source: Path) -> Path:
    """Give a tokenizer Liquid's tokens: in place of Gemma's unused ones, or behind the others."""
    folder.mkdir()
    plain = json.loads((source / "tokenizer.json").read_text())
    vocab = plain["model"]["vocab"]
    for number, token in enumerate(CONTROL):
        place = vocab.pop(f"<unused{number}>", len(vocab) + number)
        if place < len(vocab):
            vocab[token] = place
        # Gemma's unused words are not special, and so are those that took their place.
        added = {"id": place, "content": token, "special": place > len(vocab), "normalized": False}
        plain["added_tokens"].append(
            {**added, "single_word": False, "lstrip": False, "rstrip": False}
        )
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    return folder


@pytest.fixture(scope="module", params=["gemma", "llama"])
def tokenizer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    source = request.getfixturevalue(f"{request.param}_dir")
    folder = liquid_tokenizer(tmp_path_factory.mktemp("t") / request.param, source)
    bos, eos = ("<bos>", "<eos>") if request.param == "gemma" else ("<s>", "</s>")
    # Not AutoTokenizer: transformers 5 builds both anew, without what the file says of spaces.
    file = str(folder / "tokenizer.json")
    return folder, PreTrainedTokenizerFast(tokenizer_file=file, bos_token=bos, eos_token=eos)


def found_rows(folder: Path) -> dict[str, tuple[list[int], list[int]]]:
    found = {}
    for row in sm.open(folder):
        labels = np.full(len(row.ids), -100)
        for start, length in row.loss.tolist():
            labels[start : start + length] = row.ids[start : start + length]
        found[row.key] = row.ids.tolist(), labels.tolist()
    return found


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (1, 3)])
def test_ids_and_labels_are_those_of_liquid(
    tokenizer: tuple[Path, Any], tmp_path: Path, size: tuple[int, int]
) -> None:
    folder, reference = tokenizer
    samples: list[Sample] = []
    for number, text in enumerate(texts(400 if size == (32, 32) else 60, seed=size[0])):
        make = make_text if number % 5 == 4 else make_pair
        samples.append(make(f"k{number}", text))
    pairs, codes = store_coded(tmp_path, samples, per_shard=100, size=size)
    (tmp_path / "pool.txt").write_text("\n".join(POOL), "utf-8")
    template = f"liquid,instructions={tmp_path / 'pool.txt'}"
    sm.tokenize(
        pairs, tmp_path / "out", template=template, tokenizer=folder, codes=codes, workers=0
    )
    found = found_rows(tmp_path / "out")
    assert sm.open(tmp_path / "out").space.code_offset == len(reference)
    chosen: dict[str, int] = {}
    for sample in samples:
        image = codes_of(sample.key, *size).reshape(-1).tolist() if sample.media else None
        wanted = liquid_rows(reference, sample.document.text, image)
        tasks = [task for task, row in wanted.items() if row == found[sample.key]]
        assert tasks, (sample.document.text, found[sample.key], wanted)
        chosen[tasks[0]] = chosen.get(tasks[0], 0) + 1
    if size == (32, 32):
        assert {*chosen} == {"text", "i2t", "unconditional", *POOL}
        assert 130 <= chosen["i2t"] <= 190 and 5 <= chosen["unconditional"] <= 30
        assert min(chosen[instruction] for instruction in POOL) > 30


def test_tables_of_text_are_said_as_liquid_says_them(
    tokenizer: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, reference = tokenizer
    rows = texts(200, seed=9)
    table = tmp_path / "texts.jsonl"
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    sm.tokenize(table, tmp_path / "out", template="liquid", tokenizer=folder, workers=0)
    found = [*found_rows(tmp_path / "out").values()]
    assert found == [liquid_rows(reference, text, None)["text"] for text in rows]


def test_control_tokens_that_people_wrote_stay_text(
    tokenizer: tuple[Path, Any], tmp_path: Path
) -> None:
    """Liquid takes them for its own, so that a caption could begin an image."""
    folder, reference = tokenizer
    table = tmp_path / "texts.jsonl"
    table.write_text(json.dumps({"text": "a <boi> of <eoi> or <unconditional>"}))
    sm.tokenize(table, tmp_path / "out", template="liquid", tokenizer=folder, workers=0)
    (ids, _), *_ = found_rows(tmp_path / "out").values()
    assert not {*ids} & {*reference.convert_tokens_to_ids(list(CONTROL))}
    assert "<boi> of <eoi> or <unconditional>" in reference.decode(ids)
