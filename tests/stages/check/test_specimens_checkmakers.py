from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_folder import write_sample_folder
from token_folder import SPACE, write_token_folder

from shardmill.model.manifest import Manifest
from shardmill.shards.ledger.ledger import Ledger, open_manifest
from shardmill.stages.check.specimens import (
    HANDING_ON,
    samples_behind,
    space_of,
    tokens_behind,
)


def made_by(folder: Path, **stage: str) -> Manifest:
    return replace(open_manifest(folder), stage={**stage})


def test_packs_know_their_tokens_and_tokens_their_samples(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = made_by(samples, tokens_dir=str(tokens))
    assert tokens_behind(samples, packs) == (tokens, open_manifest(tokens))
    assert space_of(samples, packs) == SPACE
    made = made_by(tokens, tokenizer="x", input_dir=str(samples))
    assert samples_behind(made) == samples
    assert tokens_behind(tokens, made) == (tokens, made)


def test_what_is_gone_or_unknown_is_left_out(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    packs = made_by(samples, tokens_dir=str(tmp_path / "gone"))
    assert tokens_behind(samples, packs) == (samples, packs)
    assert space_of(samples, packs) is None
    assert samples_behind(made_by(samples, tokenizer="x", input_dir=str(tmp_path / "gone"))) is None
    assert samples_behind(made_by(samples, input_dir=str(samples))) is None
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    (tokens / "shards" / "00000.idx").write_bytes(b"")
    assert space_of(samples, made_by(samples, tokens_dir=str(tokens))) is None


@pytest.mark.parametrize("kind", HANDING_ON)
def test_what_was_handed_on_leads_to_the_tokens_of_packs_too(tmp_path: Path, kind: str) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = write_token_folder(tmp_path / "packs", [[]])
    manifest = made_by(packs, tokens_dir=str(tokens))
    ledger = Ledger(packs, "again")
    ledger.draft_dir.mkdir(parents=True, exist_ok=True)
    ledger.write_manifest(manifest)
    samples = write_sample_folder(tmp_path / "export", [])
    export = made_by(samples, kind=kind, input_dir=str(packs))
    assert tokens_behind(samples, export)[0] == tokens
