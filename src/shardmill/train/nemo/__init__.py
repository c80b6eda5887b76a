"""What NeMo Automodel's neat packing counts and builds, for `shardmill.neat_packing`."""
