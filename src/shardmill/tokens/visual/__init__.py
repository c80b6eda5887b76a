"""What each model family's processor makes of images and videos, computed from sizes alone."""
