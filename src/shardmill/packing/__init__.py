"""Planning packs from lengths, ordering them, and building one: numpy, and numba if there."""
