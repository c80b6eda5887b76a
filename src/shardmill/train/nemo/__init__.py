"""shardmill.train.nemo."""
