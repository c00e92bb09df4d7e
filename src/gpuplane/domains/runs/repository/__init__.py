"""Every query on runs, steps, kept events, places, reusable outputs and workers."""
