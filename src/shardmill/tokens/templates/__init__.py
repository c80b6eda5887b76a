"""shardmill.tokens.templates."""
