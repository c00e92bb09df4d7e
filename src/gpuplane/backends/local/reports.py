"""What a job reports through files: progress, outputs, checkpoints.

A job's file is input from a stranger: too long, half-written or malformed becomes a sentence in
the observation, never an error.
"""

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpuplane.kit.depths import MAX_JSON_DEPTH, is_deeper


@dataclass(frozen=True, slots=True)
class Reports:
    """The latest of each kind, and what was wrong with what could not be read."""

    progress_ratio: float | None = None
    checkpoint: str | None = None
    checkpoint_at: int | None = None
    outputs: dict[str, object] | None = None
    complaints: tuple[str, ...] = ()


class _Malformed(Exception):
    pass


def read_reports(folder: Path, max_bytes: int) -> Reports:
    """Return what a replica has reported so far."""
    complaints: list[str] = []
    progress = checkpoint = outputs = None
    at_ms = None
    try:
        progress = _parse_progress(_last_line(folder / "progress", max_bytes)[0])
    except _Malformed as error:
        complaints.append(f"progress file: {error}")
    try:
        line, at_ms = _last_line(folder / "checkpoints", max_bytes)
        checkpoint = _parse_checkpoint(line)
    except _Malformed as error:
        complaints.append(f"checkpoints file: {error}")
    try:
        outputs = _parse_outputs(_read(folder / "outputs.json", max_bytes)[0])
    except _Malformed as error:
        complaints.append(f"outputs.json: {error}")
    return Reports(progress, checkpoint, at_ms if checkpoint else None, outputs, tuple(complaints))


def _parse_progress(line: str) -> float | None:
    if not line:
        return None
    value = _json(line)
    if isinstance(value, dict):
        value = value.get("ratio", value.get("progress"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Malformed("the last line is neither a ratio nor a JSON object with `ratio`")
    if not 0 <= value <= 1:
        raise _Malformed(f"the ratio {value:g} is not between 0 and 1")
    return float(value)


def _parse_checkpoint(line: str) -> str | None:
    if not line.startswith("{"):
        return line or None
    value = _json(line)
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or not path:
        raise _Malformed("the last line names no `path`")
    return path


def _parse_outputs(text: str) -> dict[str, object] | None:
    if not text.strip():
        return None
    value = _json(text)
    if not isinstance(value, dict):
        raise _Malformed("is not a JSON object")
    if is_deeper(value):
        raise _Malformed(f"nests deeper than {MAX_JSON_DEPTH} levels; flatten it")
    return value


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"is not JSON: {error}") from error


def _last_line(path: Path, max_bytes: int) -> tuple[str, int | None]:
    text, at_ms = _read(path, max_bytes)
    # A line without its end is still being written, unless it is all there is.
    complete, newline, _rest = text.rpartition("\n")
    lines = [line for line in (complete if newline else text).splitlines() if line.strip()]
    return (lines[-1].strip() if lines else ""), at_ms


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
        raise _Malformed(f"cannot be read: {error.strerror}") from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise _Malformed("is not a regular file")
        if facts.st_size > max_bytes:
            raise _Malformed(f"has {facts.st_size} bytes, more than the {max_bytes} that are read")
        data = os.pread(handle, max_bytes, 0)
    finally:
        os.close(handle)
    try:
        return data.decode(), facts.st_mtime_ns // 1_000_000
    except UnicodeDecodeError as error:
        raise _Malformed("is not UTF-8") from error
