"""Jobs, their attempts and replicas: what was asked and what became of it."""
