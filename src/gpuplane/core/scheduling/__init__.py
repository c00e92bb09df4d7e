"""Where and when workloads run: ordering, filters, scores, placement, preemption, one cycle.

Owns the decision and its explanation. Never does what it decides: that is the caller's apply.
"""
