"""A trace of jobs, and how one is read from the text of a CSV file.

Owns the columns that are known and what is said of a line that cannot be meant; never opens a
file. Instants are milliseconds since an origin of the trace's own.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

SECOND_MS = 1000
_SHOWN = 120
"""Characters of a file that are repeated in an answer."""

ARRIVAL, TIMESTAMP, DURATION, GPUS, ESTIMATE, NAME, CLUSTER = (
    "arrival_s", "timestamp", "duration_s", "gpu_count", "estimate_s", "job_id", "cluster",
)  # fmt: skip
SPELLINGS = {
    ARRIVAL: (ARRIVAL,),
    TIMESTAMP: (TIMESTAMP,),
    DURATION: (DURATION, "service_sec", "duration"),
    GPUS: (GPUS, "num_gpus"),
    ESTIMATE: (ESTIMATE,),
    NAME: (NAME,),
    CLUSTER: (CLUSTER,),
}
"""How each column may be called in a file; the first one found wins."""


class TraceError(ValueError):
    """A trace cannot be meant: the line, the column, what stands there, what was expected."""

    def __init__(self, line: int, column: str, problem: str, expected: str) -> None:
        """Make an error; an empty column means the whole line."""
        self.line, self.column, self.problem, self.expected = line, column, problem, expected
        place = f"line {line}, column {column}" if column else f"line {line}"
        super().__init__(f"{place}: {problem}; expected {expected}")


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their arrival, those of one instant in the order of the file.

    Attributes:
        names: What each is called.
        arrival_ms: When each arrives, ascending.
        duration_ms: How long each runs once it has its GPUs.
        gpus: How many GPUs each takes, all at once.
        estimate_ms: How long each is thought to run; empty where nothing is known of that.
        lines: Where each stands in the file.
        gpus_column: What the file calls the number of GPUs.
    """

    names: tuple[str, ...]
    arrival_ms: tuple[int, ...]
    duration_ms: tuple[int, ...]
    gpus: tuple[int, ...]
    estimate_ms: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    gpus_column: str = GPUS

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self.names)


class WindowError(ValueError):
    """A bound of a window is not written as the file writes its instants."""

    def __init__(self, bound: str, text: str, expected: str) -> None:
        """Make an error; `bound` is `since` or `until`."""
        self.bound, self.text, self.expected = bound, text, expected
        super().__init__(f"{bound} {text!r}: expected {expected}")


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which lines of a file count.

    Args:
        since: Those that arrive at or after this instant, which becomes the trace's origin;
            written as the file writes instants.
        until: Those that arrive before this one.
        clusters: Those of these clusters; empty means all.
    """

    since: str | None = None
    until: str | None = None
    clusters: frozenset[str] = frozenset()


def read_trace(
    lines: Iterable[str], kept: TraceFilter | None = None, *, tick_ms: int = SECOND_MS
) -> Trace:
    """Return the jobs of a CSV file.

    Needs the columns `arrival_s` (seconds) or `timestamp` (ISO 8601, UTC unless it says
    otherwise), `duration_s` or `service_sec` or `duration` (seconds), and `gpu_count` or
    `num_gpus`. Knows `job_id`, `cluster` and `estimate_s` (seconds), and ignores every other.
    Blank lines are passed over. Times that are not whole ticks are cut to them, as the
    simulators of Helios and Lucid cut theirs to whole seconds. Instants count from the filter's
    `since`, else from 0 of `arrival_s` and from the first job of a file with timestamps.

    Args:
        lines: The text, with or without line ends; the first line names the columns.
        kept: Which lines count; all unless told.
        tick_ms: The clock's step.

    Raises:
        TraceError: If a line cannot be meant; it names the first one.
        WindowError: If a bound of the filter is no instant of this file.
    """
    kept = kept or TraceFilter()
    rows = _rows(lines)
    header = next(rows, None)
    if header is None:
        raise TraceError(1, "", "the file is empty", "a line with the names of the columns")
    columns = _Columns.of(*header)
    if kept.clusters and columns.cluster is None:
        found = f"there is no column {CLUSTER!r}"
        raise TraceError(header[0], "", found, "one, since only some clusters are wanted")
    since_ms = _bound_ms("since", kept.since, columns)
    until_ms = _bound_ms("until", kept.until, columns)
    jobs = []
    named: set[str] = set()
    for line, cells in rows:
        if len(cells) != columns.count:
            found = f"{_counted(len(cells), 'value')} where the header has {columns.count} names"
            raise TraceError(line, "", found, "as many as there are columns")
        job = columns.job_of(line, cells)
        if columns.name is not None and cells[columns.name].strip():
            if job[5] in named:
                raise TraceError(
                    line, NAME, f"{_show(job[5])} stands there again", "a name of its own"
                )
            named.add(job[5])
        if since_ms is not None and job[0] < since_ms:
            continue
        if until_ms is not None and job[0] >= until_ms:
            continue
        if (
            columns.cluster is None
            or not kept.clusters
            or (cells[columns.cluster].strip() in kept.clusters)
        ):
            jobs.append(job)
    if since_ms is None:
        has_origin = not columns.has_timestamps or not jobs
        since_ms = 0 if has_origin else min(jobs)[0]
    return _trace_of(jobs, columns, since_ms, tick_ms)


def _bound_ms(bound: str, text: str | None, columns: "_Columns") -> int | None:
    if text is None:
        return None
    try:
        return columns.read_arrival(text)
    except ValueError as error:
        raise WindowError(bound, text, str(error)) from error


_Job = tuple[int, int, int, int, int, str]
"""Arrival, line, duration, GPUs, estimate (-1: none) and name; times in milliseconds."""


def _trace_of(jobs: Sequence[_Job], columns: "_Columns", origin_ms: int, tick_ms: int) -> Trace:
    def ticks(value_ms: int) -> int:
        return value_ms - value_ms % tick_ms

    arrivals = [ticks(each[0] - origin_ms) for each in jobs]
    # Jobs of one tick stand in the order of the file, whatever their fractions of it were.
    order = sorted(range(len(jobs)), key=lambda index: (arrivals[index], jobs[index][1]))
    ordered = [jobs[index] for index in order]
    return Trace(
        names=tuple(each[5] for each in ordered),
        arrival_ms=tuple(arrivals[index] for index in order),
        duration_ms=tuple(ticks(each[2]) for each in ordered),
        gpus=tuple(each[3] for each in ordered),
        estimate_ms=tuple(ticks(each[4]) for each in ordered) if columns.has_estimates else (),
        lines=tuple(each[1] for each in ordered),
        gpus_column=columns.gpus_name,
    )


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line that is not blank, and its values."""
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(line, "", str(error), "comma-separated values") from error
        if any(cell.strip() for cell in cells):
            yield line, cells


def _is_short(text: str) -> bool:
    return text.isprintable() and len(text) <= _SHOWN


def _show(text: str) -> str:
    """Return a text of the file as it may be repeated: in quotes, and no longer than a line."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where each column of a file is, and how its values are read."""

    count: int
    arrival: int
    arrival_name: str
    read_arrival: Callable[[str], int]
    duration: int
    duration_name: str
    gpus: int
    gpus_name: str
    estimate: int | None
    name: int | None
    cluster: int | None

    @property
    def has_timestamps(self) -> bool:
        return self.arrival_name == TIMESTAMP

    @property
    def has_estimates(self) -> bool:
        return self.estimate is not None

    @classmethod
    def of(cls, line: int, header: Sequence[str]) -> "_Columns":
        """Return the columns that a header names."""
        names = [cell.strip().removeprefix("\ufeff") for cell in header]
        twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise TraceError(line, twice, "the header names it twice", "each column once")
        found = {
            column: next((each for each in spellings if each in names), None)
            for column, spellings in SPELLINGS.items()
        }
        needed = {
            ARRIVAL: found[ARRIVAL] or found[TIMESTAMP],
            DURATION: found[DURATION],
            GPUS: found[GPUS],
        }
        for column, name in needed.items():
            if name is None:
                also = (*SPELLINGS[column], *((TIMESTAMP,) if column == ARRIVAL else ()))
                text = ", ".join(names)
                told = f"the header has {text if _is_short(text) else _show(text)}"
                raise TraceError(line, column, f"it is missing: {told}", " or ".join(also))
        arrival = str(needed[ARRIVAL])

        def place(column: str) -> int | None:
            name = found[column]
            return None if name is None else names.index(name)

        return cls(
            count=len(names),
            arrival=names.index(arrival),
            arrival_name=arrival,
            read_arrival=read_timestamp_ms if arrival == TIMESTAMP else read_seconds_ms,
            duration=names.index(str(needed[DURATION])),
            duration_name=str(needed[DURATION]),
            gpus=names.index(str(needed[GPUS])),
            gpus_name=str(needed[GPUS]),
            estimate=place(ESTIMATE),
            name=place(NAME),
            cluster=place(CLUSTER),
        )

    def job_of(self, line: int, cells: Sequence[str]) -> _Job:
        """Return the job of a line."""
        column, text = self.arrival_name, cells[self.arrival]
        try:
            arrival = self.read_arrival(text)
            column, text = self.duration_name, cells[self.duration]
            duration = read_seconds_ms(text)
            column, text = self.gpus_name, cells[self.gpus]
            gpus = _read_count(text)
            estimate = -1
            if self.estimate is not None:
                column, text = ESTIMATE, cells[self.estimate]
                estimate = read_seconds_ms(text)
        except ValueError as error:
            found = (
                f"{_show(text.strip())} stands there" if text.strip() else "nothing stands there"
            )
            raise TraceError(line, column, found, str(error)) from error
        name = str(line) if self.name is None else cells[self.name].strip() or str(line)
        return arrival, line, duration, gpus, estimate, name


SECONDS_WANTED = "seconds from 0 to 1e12, such as 90 or 12.5"
COUNT_WANTED = "a whole number of GPUs from 1 to 1e12"
TIMESTAMP_WANTED = "an instant such as 2017-10-09 07:01:55"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_S = 10**12
"""Some 30,000 years: what is beyond it is a slip, and would fill the memory if it were counted."""


def read_seconds_ms(text: str) -> int:
    """Return milliseconds of a number of seconds, cut to whole ones.

    Raises:
        ValueError: If it is none, with what was expected.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(SECONDS_WANTED) from None
    if not (value.is_finite() and 0 <= value <= _LONGEST_S):
        raise ValueError(SECONDS_WANTED)
    return int(value * SECOND_MS)


def read_timestamp_ms(text: str) -> int:
    """Return milliseconds since the epoch of an ISO 8601 instant; UTC unless it names a zone.

    Raises:
        ValueError: If it is none, with what was expected.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(TIMESTAMP_WANTED) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - _EPOCH) // _MILLISECOND


def _read_count(text: str) -> int:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(COUNT_WANTED) from None
    if not value.is_finite() or value != value.to_integral_value() or not 1 <= value <= _LONGEST_S:
        raise ValueError(COUNT_WANTED)
    return int(value)
