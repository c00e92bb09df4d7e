"""Cost arithmetic: prices in force at an instant, exact products, splits that add up."""
