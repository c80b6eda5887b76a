"""Samples with images and videos through a Hugging Face processor, in the loader worker."""
