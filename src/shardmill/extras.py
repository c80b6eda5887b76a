"""Optional packages, imported where they are used; a missing one says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardmill.errors import MissingExtra


def need(module: str, *, extra: str) -> Any:
    """Return the imported module, or raise `MissingExtra` that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise MissingExtra(module.split(".")[0], extra) from error
        raise
