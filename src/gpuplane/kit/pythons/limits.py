"""What a piece of user Python may take, and how its run ended: values without behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MIB = 1 << 20
KIB = 1 << 10


class PythonWord(StrEnum):
    """How a run ended, for programs."""

    COMPLETED = "Completed"
    BAD_SOURCE = "BadSource"
    RAISED = "Raised"
    EXITED = "Exited"
    NO_RESULT = "NoResult"
    RESULT_NOT_JSON = "ResultNotJson"
    RESULT_TOO_LARGE = "ResultTooLarge"
    INPUT_NOT_JSON = "InputNotJson"
    INPUT_TOO_LARGE = "InputTooLarge"
    TIMED_OUT = "TimedOut"
    CPU_TIME_EXCEEDED = "CpuTimeExceeded"
    OUT_OF_MEMORY = "OutOfMemory"
    TOO_MUCH_OUTPUT = "TooMuchOutput"
    FILE_TOO_LARGE = "FileTooLarge"
    DISK_EXCEEDED = "DiskExceeded"
    PROCESS_REFUSED = "ProcessRefused"
    NETWORK_REFUSED = "NetworkRefused"
    CRASHED = "Crashed"
    NOT_ISOLATED = "NotIsolated"


@dataclass(frozen=True, slots=True)
class PythonLimits:
    """What one run may take.

    Args:
        wall_s: From start to end, waiting included.
        cpu_s: Processor time of all its threads.
        memory_mib: Address space; the interpreter itself takes about 30 MiB of it.
        output_bytes: What is kept of stdout and stderr together. What is printed beyond is read
            and thrown away; who prints 16 times as much is stopped.
        result_bytes: Of the result as JSON.
        input_bytes: Of source and inputs together.
        file_mib: One file.
        disk_mib: All files together, looked at a few times a second.
        open_files: Descriptors at once.
        network: Whether it may open sockets.
    """

    wall_s: float = 30.0
    cpu_s: int = 30
    memory_mib: int = 256
    output_bytes: int = 64 * KIB
    result_bytes: int = 1 * MIB
    input_bytes: int = 8 * MIB
    file_mib: int = 64
    disk_mib: int = 128
    open_files: int = 64
    network: bool = False


@dataclass(frozen=True, slots=True)
class PythonResult:
    """How a run ended.

    Args:
        word: For programs; COMPLETED if there is a result.
        message: One sentence for people, empty when completed.
        result: What `main` returned, or `result` of a script; None unless completed.
        output: What it printed, stdout and stderr as they came, with a mark where it was cut.
        duration_ms: From the start of the process to its end.
        isolation: What the kernel enforced (`enforced`) and what it did not (`cooperative`), for
            `processes`, `network` and `files`; empty if the process did not come so far.
    """

    word: PythonWord
    message: str = ""
    result: Any = None
    output: str = ""
    duration_ms: int = 0
    isolation: Mapping[str, str] = field(default_factory=dict)
