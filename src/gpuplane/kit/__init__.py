"""Small helpers that know no domain."""
