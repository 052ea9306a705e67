"""Engines of others with our policies in them, by name: thin wiring, active only when it is asked for."""
