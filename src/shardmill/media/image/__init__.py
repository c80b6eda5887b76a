"""shardmill.media.image."""
