"""shardmill.stages.check."""
