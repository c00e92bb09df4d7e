"""What a job reports through files: progress, outputs, checkpoints.

A job's file is input from a stranger: too long, half-written or malformed becomes a sentence in
the observation, never an error.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpuplane.core.reports import (
    MalformedReport,
    last_line,
    parse_checkpoint,
    parse_json,
    parse_progress,
)
from gpuplane.kit.depths import MAX_JSON_DEPTH, is_deeper


@dataclass(frozen=True, slots=True)
class Reports:
    """The latest of each kind, and what was wrong with what could not be read."""

    progress_ratio: float | None = None
    checkpoint: str | None = None
    checkpoint_at: int | None = None
    outputs: dict[str, object] | None = None
    complaints: tuple[str, ...] = ()


def read_reports(folder: Path, max_bytes: int) -> Reports:
    """Return what a replica has reported so far."""
    complaints: list[str] = []
    progress = checkpoint = outputs = None
    at_ms = None
    try:
        progress = parse_progress(_last_line(folder / "progress", max_bytes)[0])
    except MalformedReport as error:
        complaints.append(f"progress file: {error}")
    try:
        line, at_ms = _last_line(folder / "checkpoints", max_bytes)
        checkpoint = parse_checkpoint(line)
    except MalformedReport as error:
        complaints.append(f"checkpoints file: {error}")
    try:
        outputs = _parse_outputs(_read(folder / "outputs.json", max_bytes)[0])
    except MalformedReport as error:
        complaints.append(f"outputs.json: {error}")
    return Reports(progress, checkpoint, at_ms if checkpoint else None, outputs, tuple(complaints))


def _parse_outputs(text: str) -> dict[str, object] | None:
    if not text.strip():
        return None
    value = parse_json(text)
    if not isinstance(value, dict):
        raise MalformedReport("is not a JSON object")
    if is_deeper(value):
        raise MalformedReport(f"nests deeper than {MAX_JSON_DEPTH} levels; flatten it")
    return value


def _last_line(path: Path, max_bytes: int) -> tuple[str, int | None]:
    text, at_ms = _read(path, max_bytes)
    return last_line(text), at_ms


def _read(path: Path, max_bytes: int) -> tuple[str, int | None]:
    """Return a report's text and when it was written; empty when there is none.

    A link or a device in its place is not opened: the control plane reads with its own rights,
    and a pipe would stop it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "", None
    except OSError as error:
        raise MalformedReport(f"cannot be read: {error.strerror}") from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise MalformedReport("is not a regular file")
        if facts.st_size > max_bytes:
            raise MalformedReport(
                f"has {facts.st_size} bytes, more than the {max_bytes} that are read"
            )
        data = os.pread(handle, max_bytes, 0)
    finally:
        os.close(handle)
    try:
        return data.decode(), facts.st_mtime_ns // 1_000_000
    except UnicodeDecodeError as error:
        raise MalformedReport("is not UTF-8") from error
