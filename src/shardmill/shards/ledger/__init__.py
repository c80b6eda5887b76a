"""shardmill.shards.ledger."""
