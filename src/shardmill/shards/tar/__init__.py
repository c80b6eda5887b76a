"""shardmill.shards.tar."""
