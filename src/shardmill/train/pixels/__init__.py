"""Documents of pixels: what a Hugging Face processor would make of a sample, made faster."""
