"""shardmill.shards.samples."""
