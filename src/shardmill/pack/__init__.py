"""Planning packs from lengths, ordering them, and building one: numpy only."""
