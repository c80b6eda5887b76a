"""Text, image codes and templates on their way to token ids."""
