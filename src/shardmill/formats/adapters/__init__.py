"""Layouts that belong to other projects, UniDisc and Liquid, rather than to a library."""
