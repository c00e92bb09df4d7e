"""The process that owns one attempt on this machine.

It is started as `python -I -S main.py`, imports the standard library alone and little of that
(its start is part of the time from submit to the first line of output), outlives the control
plane, and never opens the database.
"""
