"""VQ image tokenizers: pictures to codes and back."""
