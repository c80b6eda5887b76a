"""`shardmill tokenize` takes a recipe, flags win over it, and mistakes are one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from invoked import invoke, run_main
from make_media import image

from shardmill.cli.verbs import tokenize
from shardmill.errors import ConfigError
from shardmill.shards.ledger import open_manifest


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "web.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * n}) + "\n" for n in range(9)))
    return path


def run(*arguments: object) -> dict[str, object]:
    flags = ["--workers", "0", "--json"]
    result = CliRunner().invoke(
        tokenize, [str(a) for a in arguments] + flags, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    plain: dict[str, object] = json.loads(result.output)
    return plain


def test_flags_win_over_the_recipe(tmp_path: Path, table: Path) -> None:
    recipe = tmp_path / "tokens.toml"
    recipe.write_text('block_size = 4\nlimit = 3\ntemplate = "text"\n')
    report = run(table, tmp_path / "out", "--recipe", recipe, "--limit", 5)
    assert report["complete"] is True
    stage = open_manifest(tmp_path / "out").stage
    assert isinstance(stage, dict)
    assert (stage["block_size"], stage["limit"]) == (4, 5)


def test_several_tables_are_one_folder_and_a_second_run_has_nothing_to_do(
    tmp_path: Path, table: Path
) -> None:
    other = tmp_path / "more.jsonl"
    other.write_bytes(table.read_bytes())
    assert run(table, other, tmp_path / "out")["num_kept"] == 18
    assert run(table, other, tmp_path / "out")["run"]["num_done"] == 0


def test_a_template_that_needs_samples_says_so(tmp_path: Path, table: Path) -> None:
    with pytest.raises(ConfigError, match="ingest it first"):
        run(table, tmp_path / "out", "--template", "chat")


BEFORE = {  # what is typed -> what is said, before anything is written
    "tokenize pairs out --template chat": "3 x not a conversation",
    "tokenize pairs out": "3 x media in plain text",
    "tokenize pairs out --template t2i": "--codes, or another --layout",
    "tokenize pairs out --template t2i --layout patches": "--space 'added=",
    "tokenize pairs out --template t2i --layout vision": "layout vision counts its placeholders",
    "tokenize texts out --template i2t": "this template is for images, and",
    "tokenize texts out --template chatt": "did you mean 'chat'?",
    "tokenize texts out --layout patchs": "did you mean 'patches'?",
    "tokenize texts out --tokenizer Qwen/Qwen2-7B": "hf download Qwen/Qwen2-7B",
    "tokenize texts out --tokenizer photos": "name a model folder or its tokenizer.json",
    "tokenize texts out --tokenizer cut.json": "cut.json: is not JSON: Expecting value: line 1",
    "tokenize texts out --space num_codes=900,codes_at=1000": "leave codes_at out of --space",
    "tokenize texts out --space num_codes=9999999999": "do not fit into 32 bits",
    "tokenize texts out --overlong cut": "give that too",
    "tokenize texts out --text-field body": "--text-field is for tables of text",
    "tokenize texts.jsonl out --text-field body": "holds no text, of text: name another",
    "tokenize texts texts/out": "lies inside of the input texts",
    "frames pairs pairs/out": "lies inside of the input pairs",
    "measure pairs out --model qwen2.5-vl": "--tokenizer, or guess lengths by --estimate",
    "measure pairs out --model Qwen/Qwen2-VL": "hf download Qwen/Qwen2-VL",
    "measure pairs out --model qwen2.5-v --estimate": "did you mean 'qwen2.5-vl'?",
    "filter text out --drop-duplicates": "did you mean 'texts'?",
    "filter texts out": "--filter KIND or --drop-duplicates",
    "pack texts texts.jsonl out": "of the format 'plan'",
    "tokenize texts out --on locl": "did you mean 'local'?",
    "tokenize texts out --workers -1": "--workers",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pairs and two texts, raw and as samples."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "photos").mkdir()
    (folder / "cut.json").write_text('{"model": ')
    for number in range(3):
        (folder / "photos" / f"{number}.jpg").write_bytes(image("JPEG", 32, 32))
        (folder / "photos" / f"{number}.txt").write_text("a photo")
    (folder / "texts.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    invoke("ingest", folder / "photos", folder / "pairs", "--workers", 0)
    invoke("ingest", folder / "texts.jsonl", folder / "texts", "--workers", 0)
    return folder


@pytest.mark.parametrize("words", BEFORE)
def test_what_cannot_be_is_told_before_the_work(
    project: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(project)
    _, err = run_main(*words.split(), code=2)
    assert BEFORE[words] in err and err.lower().count("error:") == 1
    assert not Path("out").exists() and not Path("pairs/out").exists()


def test_samples_that_may_all_be_lost_are_not_tried_before(project: Path, tmp_path: Path) -> None:
    words = ("tokenize", project / "pairs", tmp_path / "out", "--workers", 0)
    assert "3 x media in plain text" in run_main(*words, "--max-skip-rate", 1, code=3)[0]
