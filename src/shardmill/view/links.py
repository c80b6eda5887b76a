"""How items hang together: which folder, plan or file a stage was made from, as its spec says.

Specs hold paths as they were typed, often relative to a folder that nobody remembers. A path is
tried from the item's own place upwards, and counts only if it leads to an item on the shelf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import normpath
from pathlib import Path
from typing import Any

from shardmill.io.urls import is_remote
from shardmill.remote.path import UrlPath
from shardmill.view.shelf import Item

INPUTS = ("input_dir", "tokens_dir", "samples_dir", "plan_path")
RAW = ("files", "tars", "dir", "meta")
MAX_RAW = 200


def find_item(typed: str, near: Path, items: Mapping[str, Item]) -> Item | None:
    """Return the item that a path in the spec of `near` means, or None."""
    by_path = {str(item.path): item for item in items.values()}
    if is_remote(typed) or isinstance(near, UrlPath):
        tried = [typed.rstrip("/"), *(f"{base}/{typed}" for base in near.parents)]
    else:
        tried = [normpath(base / typed) for base in (Path("/"), *near.parents)]
    return next((by_path[path] for path in tried if path in by_path), None)


def inputs_of(spec: Mapping[str, Any], near: Path, items: Mapping[str, Item]) -> list[Item]:
    """Return the items that a stage reads, in the order of its fields."""
    typed = [spec[name] for name in INPUTS if isinstance(spec.get(name), str)]
    codes = spec.get("codes")
    if isinstance(codes, dict):
        typed += [value for value in codes.values() if isinstance(value, str)]
    found = (find_item(path, near, items) for path in typed)
    return list(
        {item.id: item for item in found if item is not None and item.path != near}.values()
    )


def raw_inputs(spec: Mapping[str, Any]) -> list[str]:
    """Return the names of the raw files that a stage reads, a few hundred at most."""
    source = spec.get("source")
    places = [spec] if not isinstance(source, dict) else [source]
    return list(_raw(places))[:MAX_RAW]


def _raw(places: list[Any]) -> Iterator[str]:
    for place in places:
        for name in RAW:
            value = place.get(name)
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield from (path for path in value if isinstance(path, str))
