"""Check: folders against their receipts, and what their shards hold."""
