"""Batches for training loops: packs or samples, in an order that is plain arithmetic."""
