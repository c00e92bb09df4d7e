"""Runs Python that somebody else wrote, in a process of its own and within limits."""
