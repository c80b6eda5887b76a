from __future__ import annotations

import io
from pathlib import Path

import pytest
from view_folders import run_in
from vq_checkpoints import write_original

from shardmill.errors import ConfigError
from shardmill.view.context import Desk
from shardmill.view.items import NotHere
from shardmill.view.library import Library
from shardmill.view.server import decode_codes

Image = pytest.importorskip("PIL.Image")


def test_codes_are_decoded_beside_their_originals_if_asked(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    monkeypatch.setenv("SHARDMILL_THREADS", "1")
    write_original(tmp_path / "weights")
    tokenizer = f"chameleon,weights={tmp_path / 'weights'}"
    options = f"--tokenizer {tokenizer} --resolution 32 --limit 2 --workers 0"
    run_in(tmp_path, f"codes {pipeline / 'pairs'} codes {options}")
    allowed = Desk(Library(tmp_path), decodes=True)
    folder = allowed.library.folder("codes")
    image = Image.open(io.BytesIO(decode_codes(allowed, folder, "pairs-00000000", "jpg")))
    assert image.size == (64, 32)
    with pytest.raises(NotHere):
        decode_codes(allowed, folder, "pairs-00000000", "png")
    with pytest.raises(ConfigError, match="--reconstruct"):
        decode_codes(Desk(Library(tmp_path)), folder, "pairs-00000000", "jpg")
