"""shardmill.formats.huggingface."""
