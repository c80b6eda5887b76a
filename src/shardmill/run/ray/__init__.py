"""shardmill.run.ray."""
