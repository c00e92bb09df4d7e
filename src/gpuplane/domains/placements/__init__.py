"""Who holds which device now, guarded so that nothing is sold twice; capacity reservations."""
