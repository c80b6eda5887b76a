"""The fence: which files the page may read, wherever links and indexes point.

A request never holds a path: it names a folder, a unit or a medium, and these are looked up. What
is left are links on disk and tars that an index names. A folder with a link that leads out of the
fence is not opened at all, and a tar outside of it is not read, unless the user allowed its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardmill.errors import ShardmillError
from shardmill.shards.ledger.ledger import FOLDERS
from shardmill.storage.path import UrlPath
from shardmill.storage.url import is_remote


class Refused(ShardmillError):
    """Something lies outside of what the page may read."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Folders (resolved) and urls that may be read, with all that lies in them."""

    folders: tuple[Path, ...]
    urls: tuple[str, ...] = ()

    @classmethod
    def around(cls, root: Path, allowed: tuple[str, ...] = ()) -> Fence:
        """Return the fence around a folder and the places that the user allowed."""
        places = [str(root), *allowed]
        urls = tuple(place.rstrip("/") + "/" for place in places if is_remote(place))
        folders = tuple(Path(place).resolve() for place in places if not is_remote(place))
        return cls(folders, urls)

    def holds(self, path: Path) -> bool:
        """Whether a path, with all links followed, lies inside."""
        if isinstance(path, UrlPath):
            return self._holds_url(f"{path}/")
        resolved = path.resolve()
        return any(resolved.is_relative_to(folder) for folder in self.folders)

    def check_url(self, url: str) -> None:
        """Raise `Refused` unless a tar that an index names lies inside."""
        if is_remote(url):
            if self._holds_url(url):
                return
            place = url.rpartition("/")[0]
        else:
            path = Path(url.removeprefix("file://"))
            if self.holds(path):
                return
            place = str(path.parent)
        raise Refused(f"{url} lies outside of the folder: start with --allow {place} to read it")

    def _holds_url(self, url: str) -> bool:
        return ".." not in url and any(url.startswith(place) for place in self.urls)

    def check_links(self, folder: Path) -> None:
        """Raise `Refused` if the ledger of a folder holds a link that leads out.

        A store has no links.
        """
        if isinstance(folder, UrlPath):
            return
        for path in _links(folder):
            if not self.holds(path):
                raise Refused(
                    f"{path} is a link to {os.readlink(path)}, outside of the folder: start with "  # noqa: PTH115
                    f"--allow {path.resolve().parent} to follow it"
                )


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in a folder and in those of its ledger; costs one listing of each."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        if place != folder and place.is_symlink():
            continue  # it was yielded with its parent
        try:
            with os.scandir(place) as entries:
                yield from (Path(entry.path) for entry in entries if entry.is_symlink())
        except OSError:
            continue
