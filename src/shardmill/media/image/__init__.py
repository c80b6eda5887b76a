"""Images: headers, pixels, and the sizes they are brought to."""
