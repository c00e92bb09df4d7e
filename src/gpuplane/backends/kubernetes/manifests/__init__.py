"""From a plan to objects: pure functions, no client. `workloads.py` is the entrance."""
