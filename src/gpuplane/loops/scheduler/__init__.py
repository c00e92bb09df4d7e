"""The scheduler loop: one consistent read, one pure decision a cluster, guarded applies."""
