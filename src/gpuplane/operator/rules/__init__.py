"""What the operator decides: pure functions of what was seen, without clock, chance or I/O."""
