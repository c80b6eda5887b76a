"""Serving packs and samples to training loops: order and state are plain arithmetic."""
