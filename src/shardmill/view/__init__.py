"""The page over a folder: a small server, the answers it gives, and the report made of them."""
