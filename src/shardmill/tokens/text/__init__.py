"""shardmill.tokens.text."""
