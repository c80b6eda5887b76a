"""Pictures decoded from their codes beside the originals, for who started the page with weights."""

from __future__ import annotations

from shardmill.errors import ConfigError
from shardmill.stages.codereport import reconstruct
from shardmill.view.desk import Desk
from shardmill.view.folder import Folder
from shardmill.view.media import as_png
from shardmill.view.shelf import NotHere


def decode_codes(desk: Desk, folder: Folder, key: str, medium: str) -> bytes:
    """Return a PNG: the picture as it was encoded on the left, as its codes decode to it right."""
    if not desk.decodes:
        raise ConfigError("start with --reconstruct to load the weights and decode codes")

    def make() -> bytes:
        for picture in reconstruct(folder.path, [key]):
            if picture.medium == medium:
                return as_png(picture.side_by_side())
        raise NotHere(f"sample {key!r} has no codes of {medium!r}")

    return desk.keep(("decoded", str(folder.path), key, medium), make)
