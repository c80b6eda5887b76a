"""shardmill.shards.tokens."""
