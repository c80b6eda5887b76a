"""Sources: where rows come from, what they mean, and where their media are."""
