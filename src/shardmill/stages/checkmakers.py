"""Packs know the tokens they were made from, and tokens their samples, as long as these are there.

What a folder does not say of itself (tokenizer, token space, documents) is looked up there.
"""

from __future__ import annotations

from pathlib import Path

from shardmill.io.receipts import open_manifest
from shardmill.io.tokenset import open_token_set
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.remote.path import as_path


def tokens_behind(folder: Path, manifest: Manifest) -> tuple[Path, Manifest]:
    """Return the folder of tokens that packs were made from; any other folder is its own."""
    place = _named(manifest, "tokens_dir")
    return (folder, manifest) if place is None else (place, open_manifest(place))


def samples_behind(manifest: Manifest) -> Path | None:
    """Return the folder of samples that tokens were made from, None if it is not known or gone."""
    is_tokens = isinstance(manifest.stage, dict) and "tokenizer" in manifest.stage
    return _named(manifest, "input_dir") if is_tokens else None


def space_of(folder: Path, manifest: Manifest) -> TokenSpace | None:
    """Return the token space of tokens or packs, None for samples and packs of others."""
    place, made = tokens_behind(folder, manifest)
    if not any("spans" in shard.files for shard in made.shards):
        return None
    return open_token_set(place, made).space


def _named(manifest: Manifest, field: str) -> Path | None:
    name = manifest.stage.get(field) if isinstance(manifest.stage, dict) else None
    if not isinstance(name, str) or not (as_path(name) / "manifest.json").exists():
        return None
    return as_path(name)
