"""Token shards: Megatron's ids and index, the spans beside them, and their writer."""
