"""WebDataset tars: their headers and names, reading, writing, and the index beside each."""
