"""Tables as sources: text tables, JSON, parquet and Arrow."""
