"""A user's own function after tokenization: 'package.module:function', row in, row out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, cast

from shardmill.errors import ConfigError, UnitFailed
from shardmill.model.sample import Sample
from shardmill.model.tokenrow import TokenRow

Hook: TypeAlias = Callable[[TokenRow, Sample], TokenRow]


def load_hook(path: str) -> Hook:
    """Return the function; it may raise `SampleError` to leave a sample out."""
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"hook {path!r} is not of the form 'package.module:function'")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the hook {path!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"the hook {path!r} is not a function")

    def checked(row: TokenRow, sample: Sample) -> TokenRow:
        changed = found(row, sample)
        if not isinstance(changed, TokenRow):
            raise UnitFailed(f"the hook {path!r} returned {type(changed).__name__}, not a TokenRow")
        return changed

    return cast(Hook, checked)
