"""Videos: headers, frame tables, samplers and decoding."""
