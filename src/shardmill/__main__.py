"""`python -m shardmill`."""

from __future__ import annotations

from shardmill.cli.main import main

main()
