"""Images and videos: sizes from headers, decoding, frames."""
