"""shardmill.formats.unidisc."""
