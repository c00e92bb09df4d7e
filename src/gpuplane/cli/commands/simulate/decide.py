"""`gpuplane simulate decide`: a recorded decision made again, here, and held against the record.

Owns reading the file and showing what was decided; the decision is the core's.
"""

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.output import Output, output_option, show_data, show_fields
from gpuplane.core.scheduling.decisions import Decision, Waiting
from gpuplane.core.scheduling.recording import (
    Recording,
    RecordingFormatError,
    decode_recording,
)

GZIP_MAGIC = b"\x1f\x8b"


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@output_option
def decide(file: Path, output: Output) -> None:
    """Decide again on a recorded input; ends with 1 if the record says something else."""
    recording, recorded = _read(file)
    decision = recording.replay()
    again = decision.to_json()
    if output.is_data:
        show_data(json.loads(again), output)
    else:
        compared = "nothing to compare with"
        if recorded is not None:
            compared = "the same bytes" if again == recorded else "something else"
        show_fields(_fields(recording, decision, compared))
    if recorded not in (None, again):
        raise CliError(
            "The record holds another decision than this version makes.",
            fix="Replay it with the version that made it.",
            code=Exit.FAILED,
        )


def _fields(recording: Recording, decision: Decision, compared: str) -> list[tuple[str, object]]:
    reasons = Counter(
        each.reason.word.value for each in decision.verdicts if isinstance(each, Waiting)
    )
    nodes = sum(len(fleet) for fleet in recording.snapshot.fleets)
    return [
        ("generation", decision.generation),
        ("nodes", f"{nodes:,}"),
        ("pending", f"{len(recording.snapshot.pending):,}"),
        ("running", f"{len(recording.snapshot.running):,}"),
        ("placed", f"{len(decision.placed):,}"),
        ("preempting", f"{len(decision.preempting):,}"),
        ("waiting", f"{len(decision.waiting):,}"),
        *((f"  {word}", f"{count:,}") for word, count in reasons.most_common()),
        ("recorded", compared),
    ]


def _read(file: Path) -> tuple[Recording, bytes | None]:
    """Return the input and, if the file holds it, what was decided.

    Raises:
        CliError: If the file cannot be read or is no recording.
    """
    try:
        packed = file.read_bytes()
        content = gzip.decompress(packed) if packed.startswith(GZIP_MAGIC) else packed
    except FileNotFoundError as error:
        raise CliError(
            f"There is no file {str(file)!r}.", field="FILE", code=Exit.NOT_FOUND
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = f"{file} is packed with gzip, and cut off or damaged; expected a whole file."
        raise CliError(problem, field="FILE", code=Exit.USAGE) from error
    except OSError as error:
        raise CliError(
            f"{file}: {error.strerror or error}.", field="FILE", code=Exit.USAGE
        ) from error
    first, _, rest = content.partition(b"\n")
    try:
        return decode_recording(first), rest.strip() or None
    except RecordingFormatError as error:
        raise CliError(f"{file}: {error}", field="FILE", code=Exit.USAGE) from error
