"""Formats of other projects, one file each."""
