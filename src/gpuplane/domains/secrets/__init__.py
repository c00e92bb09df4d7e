"""Secrets of projects: sealed, versioned, injected into jobs, never shown again."""
