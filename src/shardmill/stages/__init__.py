"""Stages, a file a verb: each turns one unit into one shard."""
