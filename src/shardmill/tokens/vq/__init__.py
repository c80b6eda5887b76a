"""VQ image tokenizers: images to codes and back."""
