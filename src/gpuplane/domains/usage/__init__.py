"""The GPU-second ledger: what every device did at every millisecond, and who held it."""
