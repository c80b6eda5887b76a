"""TOML that a person wrote: recipes, and the file of a cluster."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or raise `ConfigError` that names the file and the line."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except RecursionError:
        raise ConfigError(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
