"""Clusters: what can run work, in which state, frozen or not, and their maintenance windows."""
