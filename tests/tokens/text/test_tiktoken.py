"""The ids of tiktoken ranks are tiktoken's own."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from shardmill.errors import ConfigError
from shardmill.tokens.text.tiktoken import PATTERNS, TiktokenText, read_ranks


@pytest.fixture(scope="module")
def ranks_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    merges = [b"th", b"the", b" t", b" the", b"\n\n", b"er", b"12", "é".encode()]
    tokens = [bytes([n]) for n in range(256)] + merges
    path = tmp_path_factory.mktemp("ranks") / "small.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % n for n, t in enumerate(tokens)))
    return path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_fast_engine_gives_tiktokens_ids(
    ranks_path: Path, pattern: str, real_texts: list[str]
) -> None:
    specials = {"<|end|>": 300}
    spec = TiktokenText(
        path=ranks_path, pattern=pattern, specials=specials, roles={"eos": "<|end|>"}
    )
    fast, slow = (
        spec.load(),
        TiktokenText(path=ranks_path, pattern=pattern, engine="reference").load(),
    )
    assert (fast.engine, slow.engine) == ("gigatoken", "reference")
    texts = [*real_texts[:200], "x <|end|> y"]
    assert fast.encode_batch(texts).same(slow.encode_batch(texts))
    assert (fast.vocab_size, fast.roles, slow.vocab_size) == (301, {"eos": 300}, 264)
    assert fast.decode([*fast.encode("the é").tolist(), 300]) == "the é<|end|>"


def test_a_pattern_of_ones_own_runs_on_the_reference(ranks_path: Path) -> None:
    found = TiktokenText(path=ranks_path, pattern=r"\S+|\s+").load()
    assert found.engine == "reference"
    starts = found.starts("the é")
    assert len(starts) == len(found.encode("the é"))
    assert starts[0] == 0 and starts[-1] == 4


@pytest.mark.parametrize("content", [b"", b"not base64 1\n", b"dGhl one\n", b"dGhl\n"])
def test_a_file_that_holds_no_ranks_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tiktoken"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_ranks(path)


def test_a_role_needs_a_token(ranks_path: Path) -> None:
    with pytest.raises(ConfigError, match="<eos>"):
        TiktokenText(path=ranks_path, pattern="gpt2", roles={"eos": "<eos>"}).load()
