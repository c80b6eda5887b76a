"""Planning packs from lengths, ordering them, and building one: numpy, and C if there."""
