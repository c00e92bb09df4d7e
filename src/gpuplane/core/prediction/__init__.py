"""What kind of work a job is, how long it will take and what it will use, from those before it.

Owns the class of a workload, the quantiles learned from ended work, and the hint that placement
may use; never decides where anything runs and never reads a clock or a table.
"""
