"""What each model family's processor makes of pictures and videos, computed from sizes alone."""
