"""One pool of equal nodes and its queue, run over a trace of jobs by a clock of events.

Owns the trace, the pool with its placement rule, the orders, how a queue is served and the
figures that come out. Never reads a file or a clock: text comes in as lines, time as a number.
"""
