"""shardmill turns raw images, videos and text into balanced, packed training batches."""

__version__ = "0.1.0"
