"""shardmill.sources.media."""
