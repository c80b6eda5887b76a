"""shardmill turns raw images, videos and text into balanced, packed training batches."""

from __future__ import annotations

__version__ = "0.1.0"
