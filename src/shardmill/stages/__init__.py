"""Stages: frozen specs that turn units into shards."""
