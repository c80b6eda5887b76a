from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sample_folder import write_sample_folder
from token_folder import SPACE, write_token_folder

from shardmill.model.manifest import Manifest
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.stages.check.specimens import samples_behind, space_of, tokens_behind


def made_from(folder: Path, content: str, **reads: Path) -> Manifest:
    places = {role: (str(place),) for role, place in reads.items()}
    return replace(open_manifest(folder), content=content, reads=places)


def test_packs_know_their_tokens_and_tokens_their_samples(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = made_from(samples, "packs", tokens=tokens)
    assert tokens_behind(samples, packs) == (tokens, open_manifest(tokens))
    assert space_of(samples, packs) == SPACE
    made = made_from(tokens, "tokens", samples=samples)
    assert samples_behind(made) == samples
    assert tokens_behind(tokens, made) == (tokens, made)


def test_what_is_gone_or_unknown_is_left_out(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    packs = made_from(samples, "packs", tokens=tmp_path / "gone")
    assert tokens_behind(samples, packs) == (samples, packs)
    assert space_of(samples, packs) is None
    assert samples_behind(made_from(samples, "tokens", samples=tmp_path / "gone")) is None
    assert samples_behind(made_from(samples, "codes", samples=samples)) is None
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    (tokens / "shards" / "00000.idx").write_bytes(b"")
    assert space_of(samples, made_from(samples, "packs", tokens=tokens)) is None


def test_an_export_of_packs_leads_to_their_tokens(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = write_token_folder(tmp_path / "packs", [[]])
    manifest = made_from(packs, "packs", tokens=tokens)
    ledger = Ledger(packs, "again")
    ledger.draft_dir.mkdir(parents=True, exist_ok=True)
    ledger.write_manifest(manifest)
    samples = write_sample_folder(tmp_path / "export", [])
    export = made_from(samples, "export", input=packs)
    assert tokens_behind(samples, export)[0] == tokens
