"""Placements as values, and the pure decisions about them."""
