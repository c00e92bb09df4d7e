"""The words a supervisor writes: phases and reasons, spelt as the rest of the product does.

Copies of `backends.interface.Phase` and `core.reasons.Word`, whose import would cost the start
of every attempt several times its own work; a test keeps them equal.
"""

from __future__ import annotations

STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
EXITED = "exited"
LOST = "lost"

COMPLETED = "Completed"
NON_ZERO_EXIT = "NonZeroExit"
SIGNALLED = "KilledBySignal"
OUT_OF_MEMORY = "OOMKilled"
START_FAILED = "StartFailed"
TIMED_OUT = "MaxDurationExceeded"
UNHEALTHY = "HealthCheckFailed"
SUPERVISOR_LOST = "SupervisorLost"

RESTART_NEVER = "Never"
RESTART_ON_FAILURE = "OnFailure"
RESTART_ALWAYS = "Always"
