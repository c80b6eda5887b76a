"""shardmill.media.video."""
