"""shardmill.sources.tables."""
