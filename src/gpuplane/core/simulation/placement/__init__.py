"""Published pod lists replayed on node lists, by the published policies and by the core's own.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, and its public simulator.
"""
