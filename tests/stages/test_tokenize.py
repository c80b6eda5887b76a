"""Samples become rows; whatever is wrong with one is a reject, and the books balance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples_for_tests import store_samples

from shardmill.errors import ConfigError, SampleError, StaleError
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Stage
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.stages.tokenize import Tokenize
from shardmill.tokens.codes import FieldCodes
from shardmill.tokens.layout import LAYOUTS
from shardmill.tokens.templates.chat import Chat
from shardmill.tokens.templates.documents import Turns
from shardmill.tokens.templates.pairs import MixedPairs
from shardmill.tokens.templates.template import PlainText
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.visual.qwen import Qwen2VL

BUNDLED = SentencePieceText(path=Path("bundled"))
SPACE = TokenSpace(text_size=32_768, added=("boi", "eoi", "unconditional"), num_codes=16)
PATCHES = TokenSpace(text_size=32_768, added=("im_patch", "im_start", "im_end"))
PER_SHARD = 3


def store(folder: Path, samples: Iterable[Sample], sizes: MediaSize | None = None) -> Path:
    return store_samples(folder, list(samples), PER_SHARD, sizes)


def pair(number: int, codes: Any = None, text: str = "a cat") -> Sample:
    return Sample(
        key=f"pair-{number:04d}",
        document=Document((Segment(kind="text", text=text),)),
        origin=Origin(source="cats" if number % 2 else "dogs", path="pairs.jsonl", row=number),
        extra={} if codes is None else {"codes": codes},
    )


def tokenize(stage: Stage, out: Path, max_skip_rate: float = 1.0) -> tuple[Manifest, TokenDataset]:
    report = run_stage(stage, out, workers=0, retries=0, max_skip_rate=max_skip_rate)
    assert not report.failures, report.failures
    manifest = open_manifest(out)
    return manifest, open_tokens(out, manifest)


def pairs_stage(folder: Path, **changes: Any) -> Tokenize:
    spec = Tokenize(
        input_dir=folder,
        tokenizer=BUNDLED,
        template=MixedPairs(unconditional=0.1),
        space=SPACE,
        codes=FieldCodes(field="codes"),
    )
    return replace(spec, **changes)


def test_codes_text_only_rows_code_0_and_the_last_shard_survive(tmp_path: Path) -> None:
    codes = [[0, 1, 2, 3], "no", [15, 0, 0, 0], "[1, 2, 3, 4]", "no", [0, 0, 0, 0], [5, 5, 5, 5]]
    folder = store(tmp_path / "in", [pair(n, c) for n, c in enumerate(codes)])
    manifest, tokens = tokenize(pairs_stage(folder), tmp_path / "out")
    assert (manifest.num_in, manifest.num_kept, len(tokens)) == (7, 7, 7)
    for number, (row, stored) in enumerate(zip(tokens, codes)):
        assert row.key == f"pair-{number:04d}"
        assert row.origin == pair(number).origin
        if stored == "no":
            assert row.media == () and row.num_loss == len(row.ids)
            continue
        (span,) = row.media
        expected = json.loads(stored) if isinstance(stored, str) else stored
        body = row.ids[span.position : span.position + span.num_tokens]
        assert SPACE.local_codes(body).tolist() == expected
        assert (span.grid, row.ids[span.start], row.ids[span.end - 1]) == (
            (1, 2, 2),
            32_768,
            32_769,
        )
    assert tokens.space == SPACE
    assert manifest.stats["tokens"] == sum(len(row.ids) for row in tokens)
    assert manifest.stats["visual tokens"] == 20
    assert manifest.stats["loss tokens"] == sum(row.num_loss for row in tokens)
    assert (manifest.stats["source|cats"], manifest.stats["source|dogs"]) == (3, 4)


def files_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").iterdir())}


def test_the_same_spec_gives_the_same_bytes_and_another_epoch_other_choices(
    tmp_path: Path,
) -> None:
    folder = store(tmp_path / "in", [pair(n, [n % 16] * 4) for n in range(12)])
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    tokenize(pairs_stage(folder), one)
    report = run_stage(pairs_stage(folder), two, workers=2)
    assert report.complete
    tokenize(pairs_stage(folder, epoch=1), other)
    assert files_of(one) == files_of(two)
    assert files_of(one) != files_of(other)


def test_bad_samples_are_rejects_with_reasons(tmp_path: Path) -> None:
    samples = [
        pair(0, [0, 1, 2, 3]),
        pair(1, [0, 1, 2, 16]),
        pair(2, "[0, 1"),
        pair(3, [0, 1, 2]),
        pair(4, [-1, 0, 0, 0]),
    ]
    folder = store(tmp_path / "in", samples)
    manifest, tokens = tokenize(pairs_stage(folder), tmp_path / "out")
    assert manifest.skipped == {"bad image codes": 2, "image code out of range": 2}
    assert [row.key for row in tokens] == ["pair-0000"]


def test_a_chat_that_is_none_is_a_reject(tmp_path: Path) -> None:
    def chat(number: int, *turns: tuple[str | None, str]) -> Sample:
        segments = [
            Segment(kind="text", text=text, role=role, turn=turn)
            for turn, (role, text) in enumerate(turns)
        ]
        return Sample(key=f"c{number}", document=Document(tuple(segments)))

    folder = store(
        tmp_path / "in",
        [
            chat(0, ("user", "a\x00b"), ("assistant", "c</s>")),
            chat(1),
            chat(2, ("wizard", "x")),
            chat(3, (None, "x")),
        ],
    )
    stage = Tokenize(
        input_dir=folder, tokenizer=BUNDLED, template=Chat(), space=TokenSpace(text_size=32_768)
    )
    manifest, tokens = tokenize(stage, tmp_path / "out")
    assert manifest.skipped == {
        "empty conversation": 1,
        "not a conversation": 1,
        "unknown role": 1,
    }
    assert tokens[0].ids.tolist().count(2) == 1


def test_lengths_limits_and_policies(tmp_path: Path) -> None:
    folder = store(tmp_path / "in", [pair(n, text="word " * n) for n in range(1, 9)])
    plain = Tokenize(
        input_dir=folder,
        tokenizer=BUNDLED,
        template=PlainText(),
        space=TokenSpace(text_size=32_768),
    )
    _, whole = tokenize(plain, tmp_path / "whole")
    lengths = [len(row.ids) for row in whole]
    limit = lengths[4]
    manifest, kept = tokenize(replace(plain, max_length=limit), tmp_path / "drop")
    assert [len(row.ids) for row in kept] == lengths[:5]
    assert manifest.skipped == {"too long": 3}
    _, cut = tokenize(replace(plain, max_length=limit, overlong="cut"), tmp_path / "cut")
    assert [len(row.ids) for row in cut] == [min(n, limit) for n in lengths]
    assert all(row.ids[-1] == 2 for row in cut)
    report = run_stage(
        replace(plain, max_length=limit, overlong="fail"), tmp_path / "fail", workers=0, retries=0
    )
    assert report.failures
    manifest, blocks = tokenize(replace(plain, block_size=4), tmp_path / "blocks")
    assert manifest.num_in == manifest.num_kept == len(blocks)
    assert [i for row in blocks for i in row.ids] == [i for row in whole for i in row.ids]
    assert blocks[len(blocks) - 1].key.startswith("pair-0008~+")
    _, first = tokenize(replace(plain, limit=4), tmp_path / "first")
    assert [row.key for row in first] == [f"pair-{n:04d}" for n in range(1, 5)]


def photo(number: int, *names: str) -> Sample:
    segments = [Segment(kind="image", media=name, role="user") for name in names]
    segments.append(Segment(kind="text", text="what?", role="user"))
    segments.append(Segment(kind="text", text="a cat", role="assistant", turn=1))
    return Sample(
        key=f"p{number}", document=Document(tuple(segments)), media=dict.fromkeys(names, b"jpeg")
    )


def test_patches_are_a_fixed_number_or_counted_by_a_rule(tmp_path: Path) -> None:
    folder = store(
        tmp_path / "in",
        [photo(0, "0.jpg", "1.jpg"), photo(1, "jpg")],
        MediaSize(width=280, height=140),
    )
    fixed = Tokenize(
        input_dir=folder,
        tokenizer=BUNDLED,
        template=Turns(),
        space=PATCHES,
        layout=LAYOUTS["patches"],
    )
    _, tokens = tokenize(fixed, tmp_path / "fixed")
    assert [[m.num_tokens for m in row.media] for row in tokens] == [[256, 256], [256]]
    assert tokens[0].ids[:3].tolist() == [1, 32_769, 32_768]
    assert tokens[1].media[0].grid == (1, 16, 16)
    counted = replace(fixed, layout=replace(LAYOUTS["patches"], num_patches=None), rule=Qwen2VL())
    _, tokens = tokenize(counted, tmp_path / "counted")
    assert [m.num_tokens for m in tokens[1].media] == [50]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": LAYOUTS["patches"]}, "im_start|im_patch"),
        ({"layout": LAYOUTS["marker"]}, "image"),
        ({"space": PATCHES}, "num_codes"),
        ({"layout": replace(LAYOUTS["codes"], row_end="boi"), "codes": None}, "by --codes"),
        (
            {"space": PATCHES, "layout": replace(LAYOUTS["patches"], num_patches=None)},
            "give --rule",
        ),
    ],
)
def test_a_layout_that_the_space_cannot_hold_is_refused_before_any_work(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs_stage(tmp_path, **change)


def only_cats(row: TokenRow, sample: Sample) -> TokenRow:
    """Leave out what is not about cats, and drop the last id."""
    if "cat" not in sample.document.text:
        raise SampleError("no cat")
    return replace(row, ids=row.ids[:-1], loss=row.loss[:0])


def test_a_hook_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.tokens.assemble.only_cats", only_cats, raising=False)
    folder = store(tmp_path / "in", [pair(0), pair(1, text="a dog")])
    stage = pairs_stage(folder, template=PlainText(), hook="shardmill.tokens.assemble:only_cats")
    manifest, tokens = tokenize(stage, tmp_path / "out")
    assert manifest.skipped == {"no cat": 1}
    assert (tokens[0].num_loss, 2 in tokens[0].ids.tolist()) == (0, False)


def test_a_tokenizer_larger_than_the_space_is_an_error(tmp_path: Path) -> None:
    folder = store(tmp_path / "in", [pair(0)])
    message = "32768 ids, but the token space gives text only 32000"
    with pytest.raises(ConfigError, match=message):
        pairs_stage(folder, space=TokenSpace(text_size=32_000))
    stage = pairs_stage(folder, space=TokenSpace(text_size=32_000), codes=None)
    with pytest.raises(ConfigError, match=message):
        run_stage(stage, tmp_path / "out", workers=0)


def test_another_chat_template_in_the_same_file_makes_the_folder_stale(tmp_path: Path) -> None:
    folder = store(tmp_path / "in", [photo(0)])
    template = tmp_path / "chat.jinja"
    stage = pairs_stage(folder, template=Chat(template=template), codes=None)
    with pytest.raises(ConfigError, match=r"chat\.jinja"):
        run_stage(stage, tmp_path / "out", workers=0)
    template.write_text("{{ messages[0].content }}{{ messages[1].content }}", encoding="utf-8")
    tokenize(stage, tmp_path / "out")
    template.write_text("{{ messages[0].content }}: {{ messages[1].content }}", encoding="utf-8")
    with pytest.raises(StaleError):
        run_stage(stage, tmp_path / "out", workers=0)


@pytest.mark.parametrize("change", [{"max_length": 0}, {"block_size": -1}, {"limit": -1}])
def test_numbers_that_cannot_be_are_errors(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        pairs_stage(tmp_path, **change)
