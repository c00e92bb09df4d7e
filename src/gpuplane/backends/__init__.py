"""Where work runs: one contract, several backends behind it."""
