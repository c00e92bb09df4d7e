"""What a job reports in files, read from their text: progress and checkpoints.

A job's file is input from a stranger: what is malformed is an exception with a sentence about it,
which whoever reads it turns into a message. Reads no file.
"""

import json
import math


class MalformedReport(Exception):
    """What a job wrote is no report; the message says why."""


def parse_progress(line: str) -> float | None:
    """Return the ratio that a line of the progress file tells, None for an empty one.

    Raises:
        MalformedReport: If it is neither a ratio in [0, 1] nor JSON with `ratio`.
    """
    if not line:
        return None
    value = parse_json(line)
    if isinstance(value, dict):
        value = value.get("ratio", value.get("progress"))
    is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite:
        raise MalformedReport("the last line is neither a ratio nor a JSON object with `ratio`")
    if not 0 <= value <= 1:
        # A whole number may be too large for a float, and so for `g`.
        told = f"{value:g}" if isinstance(value, float) else str(value)[:20]
        raise MalformedReport(f"the ratio {told} is not between 0 and 1")
    return float(value)


def parse_checkpoint(line: str) -> str | None:
    """Return the path that a line of the checkpoints file tells, None for an empty one.

    Raises:
        MalformedReport: If it is JSON without `path`.
    """
    if not line.startswith("{"):
        return line or None
    value = parse_json(line)
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or not path:
        raise MalformedReport("the last line names no `path`")
    try:
        path.encode()
    except UnicodeEncodeError as error:  # JSON may escape half of a surrogate pair
        raise MalformedReport("`path` is no text that can be written") from error
    return path


def parse_json(text: str) -> object:
    """Return what a text is as JSON.

    Raises:
        MalformedReport: If it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReport(f"is not JSON: {error}") from error


def last_line(text: str) -> str:
    """Return the last whole line of a file that is still written to, empty for none.

    A line without its end is still being written, unless it is all there is.
    """
    complete, newline, _rest = text.rpartition("\n")
    lines = [line for line in (complete if newline else text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
