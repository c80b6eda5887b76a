"""What the page is made of and what it can ask for; the server and the report use the same.

An answer is a function of the context and a query that returns plain JSON. A new one is a function
and a line in the table. It is loaded when it is asked for first, so that the page opens at once.

Values of a query string are checked as they are taken. A request that looks through much data works
for a moment and returns a cursor; the next request continues there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from shardmill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from shardmill.view.context import Context

MAX_TEXT = 2000
MAX_NUMBER = 1 << 53  # the largest whole number that JavaScript holds exactly
SECONDS = 0.25  # a page that is typed into must answer before the next letter
ANSWERS: Mapping[str, str] = {
    "map": "overview:show_map",
    "item": "overview:show_item",
    "units": "overview:list_units",
    "unit": "overview:show_unit",
    "plots": "plots:show_plots",
    "rejects": "samples:list_rejects",
    "samples": "samples:list_samples",
    "sample": "samples:show_sample",
    "search": "samples:search",
    "rows": "tokens:list_rows",
    "row": "tokens:show_row",
    "packs": "tokens:list_packs",
    "pack": "tokens:show_pack",
    "codes": "codes:list_codes",
}
# These return bytes: a medium or its thumbnail, and an image decoded from its codes.
CONTENTS: Mapping[str, str] = {"media": "media:show_medium", "decoded": "codes:decode_codes"}
STATIC_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Query:
    """The values of a query string by name."""

    values: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; raises `ConfigError` if it is missing and has no default."""
        value = self.values.get(name, default)
        if value is None:
            raise ConfigError(f"the request lacks {name!r}")
        if len(value) > MAX_TEXT:
            raise ConfigError(f"{name!r} is longer than {MAX_TEXT} characters")
        return value

    def number(self, name: str, default: int | None = None, *, most: int = MAX_NUMBER) -> int:
        """Return a whole number from 0 to `most`; larger ones are taken as `most`."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value is None or not value.isascii() or not value.isdigit() or len(value) > 16:
            raise ConfigError(f"{name!r} must be a whole number, got {str(value)[:40]!r}")
        return min(int(value), most)


class Budget:
    """The time that one request may spend on a search."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        """Whether it is time to answer."""
        return time.monotonic() >= self._end_s


def answer(context: Context, name: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return one answer by its name as plain JSON; raises `NotFound` for an unknown name.

    `answer(context, "row", {"id": "tokens", "n": "17"})` is row 17 of the folder tokens.
    """
    if name not in ANSWERS:
        raise NotFound(f"there is no answer {name!r}")
    found: dict[str, Any] = _call(ANSWERS[name], context, values)
    return found


def content(context: Context, name: str, values: Mapping[str, str]) -> Any:
    """Return the bytes of an image, or for "media" also the place where a medium lies."""
    return _call(CONTENTS[name], context, values)


def _call(place: str, context: Context, values: Mapping[str, str]) -> Any:
    module, _, function = place.partition(":")
    return getattr(import_module(f"shardmill.view.{module}"), function)(context, Query(values))


def static_files() -> dict[str, bytes]:
    """Return the files of the page by name."""
    folder = files("shardmill.view") / "static"
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if "." + entry.name.rpartition(".")[2] in STATIC_TYPES
    }
