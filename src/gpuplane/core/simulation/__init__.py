"""What a policy would do with a trace: whole histories worked out by pure functions.

Owns simulators whose figures can be held against published ones; never decides anything that runs.
"""
