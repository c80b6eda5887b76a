"""A recipe describes a stage, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples_for_tests import store_samples
from unidisc_folder import write_interleaved

from shardmill.api.tokenize import to_tokenizer, tokenize_stage
from shardmill.errors import ConfigError
from shardmill.formats.adapters.unidisc import UnidiscReader
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.stages.adopt import AdoptTokens
from shardmill.stages.tokenize import Tokenize, TokenizeText
from shardmill.storage.text import read_toml
from shardmill.tokens.codes import FieldCodes
from shardmill.tokens.layout import ImageLayout
from shardmill.tokens.templates.pairs import MixedPairs
from shardmill.tokens.text.huggingface import HuggingFaceText
from shardmill.tokens.text.sentencepiece import SentencePieceText

RECIPE = """\
tokenizer = "bundled"
max_length = 2048
overlong = "cut"
seed = 7

[template]
kind = "mixed"
t2i_ratio = 0.1
unconditional = 0.1
instructions = ["Draw."]

[space]
added = ["boi", "eoi", "unconditional"]
num_codes = 8192

[layout]
row_end = "boi"

[codes]
kind = "field"
field = "vqcode_512"
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    sample = Sample(key="a", document=Document((Segment(kind="text", text="x"),)))
    return str(store_samples(tmp_path_factory.mktemp("s") / "in", [sample], 1))


def test_a_recipe_is_a_stage_that_can_travel(tmp_path: Path, samples: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(RECIPE, encoding="utf-8")
    stage = tokenize_stage(read_toml(path), [samples])
    assert stage == Tokenize(
        input_dir=Path(samples),
        tokenizer=SentencePieceText(path=Path("bundled")),
        template=MixedPairs(t2i_ratio=0.1, unconditional=0.1, instructions=("Draw.",)),
        space=TokenSpace(text_size=32_768, added=("boi", "eoi", "unconditional"), num_codes=8192),
        layout=ImageLayout(row_end="boi"),
        codes=FieldCodes(field="vqcode_512"),
        max_length=2048,
        overlong="cut",
        seed=7,
    )
    assert from_plain(to_plain(stage)) == stage


def test_tables_of_text_need_no_samples(tmp_path: Path) -> None:
    stage = tokenize_stage({"block_size": 8, "text_field": "body"}, [str(tmp_path)])
    assert isinstance(stage, TokenizeText)
    assert (stage.block_size, stage.text_field, stage.space.text_size) == (8, "body", 32_768)
    assert from_plain(to_plain(stage)) == stage


def test_other_content_of_a_text_table_is_not_left_out_unasked(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text('{"text": "a", "url": "http://x/page", "answer": "b"}\n')
    with pytest.raises(ConfigError, match=r"rows.jsonl: 'answer' .* by --extra answer"):
        tokenize_stage({}, [str(table)])
    made = tokenize_stage({"extra": ["answer"], "allow": ["/data"]}, [str(table)])
    assert isinstance(made, TokenizeText) and made.allow == ("/data",)


def test_a_path_says_what_a_tokenizer_is() -> None:
    assert to_tokenizer("llama.model") == SentencePieceText(path=Path("llama.model"))
    assert to_tokenizer("models/qwen") == HuggingFaceText(path=Path("models/qwen"))
    assert to_tokenizer({"kind": "huggingface", "path": "x"}) == HuggingFaceText(path=Path("x"))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"tokeniser": "bundled"}, "no 'tokeniser'; did you mean 'tokenizer'"),
        ({"template": "poem"}, "unknown kind 'poem'"),
        ({"template": {"kind": "t2i", "unconditional": 3}}, "between 0 and 1"),
        ({"template": 3}, "template must be 'kind,field=value' or a table"),
        ({"layout": "square"}, "layout: unknown name 'square'"),
        ({"max_length": "long"}, "max_length must be int"),
        ({"per_shard": 7}, "--per-shard is for tables of text"),
        ({"layout": "patches"}, "im_"),
        ({"max_length": 9, "overlong": "squeeze"}, "overlong must be one of fail, drop, cut"),
        ({"space": {"text_size": 10, "codes": 3}}, "no field 'codes'"),
        ({"space": {"text_size": 32_000}}, "32768 ids, but the token space gives text only 32000"),
    ],
)
def test_mistakes_are_named(samples: str, recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenize_stage(recipe, [samples])


@pytest.mark.parametrize("recipe", [{"template": "chat"}, {"hook": "a:b"}, {"overlong": "cut"}])
def test_what_needs_samples_says_so(tmp_path: Path, recipe: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ingest"):
        tokenize_stage(recipe, [str(tmp_path)])


def test_two_folders_of_samples_are_refused(samples: str) -> None:
    with pytest.raises(ConfigError, match="one folder"):
        tokenize_stage({}, [samples, samples])


def test_tokens_of_other_programs_are_recognised_or_named(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "in" / "train_0", [0])
    stage = tokenize_stage({}, [str(tmp_path / "in")])
    assert isinstance(stage, AdoptTokens)
    assert stage.reader == UnidiscReader(dir=str(tmp_path / "in"))


def test_fields_of_the_kind_and_the_space_reach_the_reader(tmp_path: Path) -> None:
    space = {"text_size": 10}
    settings = {"from": {"kind": "unidisc", "ids": "local", "split": "val"}, "space": space}
    stage = tokenize_stage(settings, [str(tmp_path)])
    assert isinstance(stage, AdoptTokens)
    expected = TokenSpace(text_size=10)
    assert stage.reader == UnidiscReader(
        dir=str(tmp_path), ids="local", split="val", space=expected
    )
