"""Row shapes: each turns the fields of a row into a document with references to its media."""
