"""Where data lies: local files, object stores and web servers; atomic writes, ranges, prefetch."""
