"""What can go wrong while a cluster is made: one exception, told apart by its reason."""

from enum import StrEnum


class Reason(StrEnum):
    """Why it could not be done."""

    NO_BINARY = "NoBinary"
    BUSY = "Busy"
    TIMED_OUT = "TimedOut"
    INTERRUPTED = "Interrupted"
    FAILED = "Failed"
    NO_PLAN = "NoPlan"
    NO_STATE = "NoState"
    STATE_LOST = "StateLost"


class ProvisioningError(Exception):
    """What could not be done, a whole sentence without credentials, and the fix."""

    def __init__(self, reason: Reason, message: str, fix: str = "") -> None:
        """Keep the three apart."""
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.fix = fix
