"""Pictures and videos: sizes from headers, decoding, frames."""
