"""shardmill.formats.liquid."""
