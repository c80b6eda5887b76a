"""What lies in a folder: sample tars, token shards, codes, lengths, plans, and the ledger."""
