"""A finished folder put into a store, file by file."""

from __future__ import annotations

from pathlib import Path

from shardmill.storage import objects


def put_folder(folder: Path, url: str) -> str:
    """Upload what readers need of a folder, the manifest last; returns the url."""
    for path in sorted(folder.glob("shards/*")):
        objects.put_file(f"{url}/shards/{path.name}", path)
    objects.put_file(f"{url}/manifest.json", folder / "manifest.json")
    return url
