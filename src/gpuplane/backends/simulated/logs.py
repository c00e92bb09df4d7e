"""What a simulated replica would have written: made on demand, stored nowhere.

Owns the text and its times. A stream at a later instant continues the stream at an earlier one,
so byte offsets stay valid for ever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from gpuplane.backends.interface import LogChunk, Stream
from gpuplane.backends.simulated.timeline import LABEL, AttemptRecord, Ending
from gpuplane.kit.clock import instant_to_text

PROGRESS_STEPS = 10
"""Progress lines of a workload whose manifest describes no log."""
LINE_GAP_MS = 1000
"""Between two described lines of a workload that has no end."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line of a stream: when it is written, where it begins, and its bytes."""

    at: int
    offset: int
    data: bytes


def compute_lines(
    record: AttemptRecord,
    position: int,
    ending: Ending | None,
    stream: Stream,
    to_instant: Callable[[int], int],
) -> Iterator[Line]:
    """Yield the lines of a stream in order, up to the replica's end.

    `position` names the replica of the record, `ending` how it ends as far as is known now.
    """
    source = _stdout(record, position) if stream is Stream.STDOUT else _stderr(ending)
    offset = 0
    for at, text in source:
        if ending is not None and at > ending.at:
            return
        data = f"{instant_to_text(to_instant(at))} {LABEL} {text}\n".encode()
        yield Line(at, offset, data)
        offset += len(data)


def compute_written(lines: Iterable[Line], at: int) -> list[Line]:
    """Return the lines that are written by a fleet instant."""
    return list(takewhile(lambda line: line.at <= at, lines))


def merge_chunks(
    written: Mapping[tuple[int, Stream], Sequence[Line]],
    offsets: Mapping[tuple[int, Stream], int],
    to_instant: Callable[[int], int],
) -> list[LogChunk]:
    """Return what lies behind the offsets of several (rank, stream), in the order of its times.

    Neighbouring lines of one stream become one chunk.
    """
    news = sorted(
        (line.at, rank, stream is Stream.STDERR, line)
        for (rank, stream), lines in written.items()
        for line in lines
        if line.offset + len(line.data) > offsets[rank, stream]
    )
    chunks: list[LogChunk] = []
    for (rank, is_error), group in groupby(news, key=lambda item: item[1:3]):
        stream = Stream.STDERR if is_error else Stream.STDOUT
        lines = [line for *_, line in group]
        skipped = max(0, offsets[rank, stream] - lines[0].offset)
        data = b"".join(line.data for line in lines)[skipped:]
        start = lines[0].offset + skipped
        chunks.append(LogChunk(rank, stream, start, data, to_instant(lines[-1].at)))
    return chunks


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
