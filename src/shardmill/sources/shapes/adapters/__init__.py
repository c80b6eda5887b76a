"""Adapters: the shapes of particular data sets, which differ from the general ones by habit."""
