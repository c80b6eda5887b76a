"""`python -m shardmill.cli`."""

from shardmill.cli.main import main

main()
