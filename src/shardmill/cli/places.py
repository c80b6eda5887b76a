"""Arguments that name a file or folder, which may be a url of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.remote.path import UrlPath, as_path
from shardmill.remote.url import is_remote


class PlaceType(click.Path):
    """What `click.Path` takes, checked as it does; and urls, which must exist if paths must.

    Of a web server only files can be looked at, so there it is left to whoever reads.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        text = str(value)
        if is_remote(text):
            path = as_path(text)
            if self.exists and isinstance(path, UrlPath) and not (path.is_web or path.exists()):
                self.fail(f"{self.name.title()} {text!r} does not exist.", param, ctx)
            return path
        return super().convert(text.removeprefix("file://"), param, ctx)
