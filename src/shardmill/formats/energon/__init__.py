"""shardmill.formats.energon."""
