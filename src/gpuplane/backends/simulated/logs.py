"""What a simulated replica would have written: made on demand, stored nowhere.

Owns the text and its times. A stream at a later instant continues the stream at an earlier one,
so byte offsets stay valid for ever.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile

from gpuplane.backends.interface import Stream
from gpuplane.backends.simulated.timeline import LABEL, AttemptRecord, Ending
from gpuplane.kit.clock import instant_to_text

PROGRESS_STEPS = 10
"""Progress lines of a workload whose manifest describes no log."""
LINE_GAP_MS = 1000
"""Between two described lines of a workload that has no end."""


def compute_lines(
    record: AttemptRecord,
    position: int,
    ending: Ending | None,
    stream: Stream,
    to_instant: Callable[[int], int],
) -> Iterator[tuple[int, bytes]]:
    """Yield (fleet time, line) of a stream in order, up to the replica's end.

    `position` names the replica of the record, `ending` how it ends as far as is known now.
    """
    source = _stdout(record, position) if stream is Stream.STDOUT else _stderr(ending)
    end_at = None if ending is None else ending.at
    for at, text in source:
        if end_at is not None and at > end_at:
            return
        yield at, f"{instant_to_text(to_instant(at))} {LABEL} {text}\n".encode()


def compute_bytes(lines: Iterator[tuple[int, bytes]], at: int) -> tuple[bytes, int | None]:
    """Return the stream as written up to a fleet instant, and when its last line was."""
    written = list(takewhile(lambda line: line[0] <= at, lines))
    return b"".join(text for _, text in written), written[-1][0] if written else None


def _stdout(record: AttemptRecord, position: int) -> Iterator[tuple[int, str]]:
    if record.log:
        yield from _described(record)
        return
    replica = record.replicas[position]
    gpus = f"{len(replica.gpu_ids)} GPUs" if replica.gpu_ids else "no GPU"
    place = f"rank {replica.rank} of {len(record.replicas)} on {replica.node} with {gpus}"
    yield record.running_at, f"{record.job_name}: {place}; nothing is executed"
    if record.work_ms is None:
        return
    for step in range(1, PROGRESS_STEPS + 1):
        work_at = record.work_ms * step // PROGRESS_STEPS
        if work_at > record.done_ms:
            percent = 100 * step // PROGRESS_STEPS
            yield record.running_at + work_at - record.done_ms, f"progress {percent} %"


def _described(record: AttemptRecord) -> Iterator[tuple[int, str]]:
    """Yield the lines of the manifest, spread evenly over the work still to be done."""
    for index, line in enumerate(record.log):
        if record.work_ms is None:
            yield record.running_at + index * LINE_GAP_MS, line
            continue
        work_at = record.work_ms * index // len(record.log)
        if work_at >= record.done_ms:
            yield record.running_at + work_at - record.done_ms, line


def _stderr(ending: Ending | None) -> Iterator[tuple[int, str]]:
    """Yield the one line of an end that is no success."""
    if ending is not None and ending.exit_code != 0:
        yield ending.at, f"{ending.reason}: {ending.message.removeprefix(LABEL).strip()}"
