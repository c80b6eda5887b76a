"""Our own folders as records: rows or packs, samples with or without codes, codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from mixed_folder import Mixed, codes_of

from shardmill.errors import ConfigError
from shardmill.formats.own import CodesReader, SamplesReader, TokensReader, open_folder
from shardmill.formats.reader import Reader, Record


def records(reader: Reader) -> list[Record]:
    return [record for part in reader.parts() for record in reader.read(part.input)]


def test_each_folder_has_its_reader(mixed: Mixed) -> None:
    wanted = {"samples": SamplesReader, "codes": CodesReader, "tokens": TokensReader}
    for name, kind in wanted.items():
        assert isinstance(open_folder(getattr(mixed, name)), kind)


def test_a_pack_is_one_record(mixed: Mixed) -> None:
    rows, packs = (records(TokensReader(dir=str(f))) for f in (mixed.tokens, mixed.packs))
    assert len(rows) == 8
    assert len(packs) < 8
    assert sorted(row.key for pack in packs for row in pack.rows) == [r.key for r in mixed.rows]


def test_samples_have_text_media_and_codes(mixed: Mixed) -> None:
    reader = SamplesReader(dir=str(mixed.samples), codes_dir=str(mixed.codes))
    assert reader.holds() == {"keys", "text", "media", "codes"}
    page = records(reader)[2]
    assert page.text.startswith("Text number 2.")
    assert len(page.media) == len(page.codes) == 2
    assert page.codes[1].tolist() == codes_of(page.key, "1.jpg").reshape(-1).tolist()
    assert page.media[0] != xxhash.xxh3_64_hexdigest(b"")


def test_a_folder_of_something_else_is_refused(tmp_path: Path, mixed: Mixed) -> None:
    from shardmill.formats.megatron import MegatronFormat
    from shardmill.running.runner import run_stage
    from shardmill.stages.export import ExportShards

    run_stage(
        ExportShards(input_dir=mixed.tokens, format=MegatronFormat(prefix="x")), tmp_path / "o"
    )
    with pytest.raises(ConfigError, match="holds export, not samples, codes or tokens"):
        open_folder(tmp_path / "o")
