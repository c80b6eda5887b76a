"""shardmill.train.pixels."""
