"""MIG: how one GPU is cut into instances, and where the next one should go."""
