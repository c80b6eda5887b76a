"""Commands called in this process, as a person would type them."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner, Result

from shardmill.cli.main import cli, main


def invoke(*words: object, code: int = 0) -> Result:
    """Return what `shardmill WORDS...` printed; it must end with the code."""
    done = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def run_main(*words: object, code: int = 0) -> tuple[str, str]:
    """Return what the program wrote to both streams; its errors are printed as users see them."""
    out, err = io.StringIO(), io.StringIO()
    typed = ["shardmill", *map(str, words)]
    with patch.object(sys, "argv", typed), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            ended = end.code
    assert ended == code, f"{typed} ended with {ended}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue(), err.getvalue()


def invoke_json(*words: object) -> dict[str, Any]:
    """Return what `shardmill WORDS... --json` reported."""
    report: dict[str, Any] = json.loads(invoke(*words, "--json").stdout)
    return report
