"""Nodes and GPUs as observed: facts from backends, and what operators said of them."""
