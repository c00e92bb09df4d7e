"""Allowed transitions as tables, each edge with a sentence, each state with owner and exit."""
