"""The page in the browser: a server that only reads, the answers it gives, and the static files."""
