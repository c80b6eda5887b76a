"""The command `shardmill`, also as `python -m shardmill`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; what it loads is installed, and does not lie in the working folder."""
    _forget_working_folder()
    from shardmill.cli.main import main as run

    run()


def _forget_working_folder() -> None:
    """Take the working folder from the search path, unless PYTHONPATH names it."""
    here, absolute = os.getcwd(), os.path.abspath  # noqa: PTH109 (nothing is loaded yet)
    named = map(absolute, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if here in named:
        return
    # What comes after the standard library is installed.
    standard = sys.path.index(os.path.dirname(os.__file__))  # noqa: PTH120
    sys.path[:standard] = [folder for folder in sys.path[:standard] if absolute(folder) != here]


if __name__ == "__main__":
    main()
