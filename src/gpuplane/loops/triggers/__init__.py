"""The loop of triggers, and how it looks into folders and buckets."""
