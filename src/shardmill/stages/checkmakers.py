"""Packs and exports know what they were made from, and tokens know their samples.

What a folder does not say of itself (tokenizer, token space, documents) is looked up there, as long
as it is there.
"""

from __future__ import annotations

from pathlib import Path

from shardmill.errors import FormatError
from shardmill.io.receipts import open_manifest
from shardmill.io.tokenset import open_token_set
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.remote.path import as_path

# Stages that hand on what they read, as `input_dir`, without saying what it means.
HANDING_ON = ("shardmill.stages.export:Export", "shardmill.stages.remove:RemoveSamples")
MAX_STEPS = 4  # an export of packs of tokens without some


def tokens_behind(folder: Path, manifest: Manifest) -> tuple[Path, Manifest]:
    """Return the folder of tokens behind packs and exports; any other folder is its own."""
    for _ in range(MAX_STEPS):
        place = _named(manifest, "input_dir" if _hands_on(manifest) else "tokens_dir")
        if place is None:
            break
        folder, manifest = place, open_manifest(place)
    return folder, manifest


def samples_behind(manifest: Manifest) -> Path | None:
    """Return the folder of samples that tokens were made from, None if it is not known or gone."""
    is_tokens = isinstance(manifest.stage, dict) and "tokenizer" in manifest.stage
    return _named(manifest, "input_dir") if is_tokens else None


def space_of(folder: Path, manifest: Manifest) -> TokenSpace | None:
    """Return the token space that packs and exports share with the tokens behind them.

    None if that is not known: for samples, packs of others, and tokens that cannot be read.
    """
    place, made = tokens_behind(folder, manifest)
    if place == folder or not any("spans" in shard.files for shard in made.shards):
        return None
    try:
        return open_token_set(place, made).space
    except (FormatError, OSError):
        return None


def _hands_on(manifest: Manifest) -> bool:
    return isinstance(manifest.stage, dict) and manifest.stage.get("kind") in HANDING_ON


def _named(manifest: Manifest, field: str) -> Path | None:
    name = manifest.stage.get(field) if isinstance(manifest.stage, dict) else None
    if not isinstance(name, str) or not (as_path(name) / "manifest.json").exists():
        return None
    return as_path(name)
