"""Files: atomic writes, receipts, tars, indexes, token files; no training framework."""
