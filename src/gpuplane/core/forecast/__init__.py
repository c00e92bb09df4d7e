"""When pending work will start and end: the cycle run forward on an event clock.

Owns estimates and their intervals; never promises: an estimate is worth what its durations are.
"""
