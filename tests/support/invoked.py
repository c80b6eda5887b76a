"""Commands called in this process, as a person would type them."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from shardmill.cli.main import cli


def invoke(*words: object, code: int = 0) -> Result:
    """Return what `shardmill WORDS...` printed; it must end with the code."""
    done = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def invoke_json(*words: object) -> dict[str, Any]:
    """Return what `shardmill WORDS... --json` reported."""
    report: dict[str, Any] = json.loads(invoke(*words, "--json").stdout)
    return report
