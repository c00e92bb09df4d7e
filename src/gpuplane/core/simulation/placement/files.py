"""Reads node and pod lists of the openb format, from lines to values.

Owns the columns, what each may hold, and the sentence for a value that cannot be meant. Never opens
a file, and never guesses: what is wrong is named by line and column.

Source: Alibaba clusterdata, cluster-trace-gpu-v2023 (README), and the pod lists of
hkust-adsl/kubernetes-scheduler-simulator, of which some carry fewer columns.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import MAX_GPUS

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MODEL_COLUMN = "gpu_spec"
"""Models that a pod accepts, joined by `|`; lists without it accept every model."""

MAX_AMOUNT = 1 << 40
"""Largest CPU or memory of one node or pod: sums of millions of them still fit 64 bits."""
MAX_ROWS = 1_000_000
"""Rows of one list: bounds the memory that a wrong file takes."""
_SHOWN = 40


class ListError(ValueError):
    """A list that cannot be read: where, what stands there, and what was expected.

    Attributes:
        line: Line of the file, from 1.
        column: Name of the column, or "" when the whole line is meant.
        expected: What should stand there, as a noun phrase.
    """

    def __init__(self, line: int, column: str, found: str, expected: str) -> None:
        self.line = line
        self.column = column
        self.expected = expected
        where = f"line {line}, column {column}" if column else f"line {line}"
        super().__init__(f"{where}: found {found}, expected {expected}")


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a list; a node without GPUs has no model."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpu_count: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """One pod of a list.

    Args:
        gpu_milli: Share of each of its GPUs; less than 1000 only with one GPU, 0 without any.
        models: Models it accepts as the list writes them, joined by `|`; "" for every model.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpu_count: int
    gpu_milli: int
    models: str = ""

    @property
    def total_milli(self) -> int:
        """GPU share that it asks for in all."""
        return self.gpu_count * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return self.gpu_count == 1 and self.gpu_milli < WHOLE_GPU_MILLI


def parse_nodes(lines: Iterable[str]) -> tuple[TraceNode, ...]:
    """Return the nodes of a list in its order.

    Raises:
        ListError: With the first line that cannot be meant.
    """
    nodes: dict[str, TraceNode] = {}
    for line, row in _rows(lines, NODE_COLUMNS):
        name = _text(row, line, "sn")
        if name in nodes:
            raise ListError(line, "sn", f"{name[:_SHOWN]!r} again", "a name of its own")
        gpus = _whole(row, line, "gpu", 0, MAX_GPUS)
        nodes[name] = TraceNode(
            name,
            _whole(row, line, "cpu_milli", 1, MAX_AMOUNT),
            _whole(row, line, "memory_mib", 1, MAX_AMOUNT),
            gpus,
            _text(row, line, "model") if gpus else "",
        )
    if not nodes:
        raise ListError(2, "", "no node", "at least one")
    return tuple(nodes.values())


def parse_pods(lines: Iterable[str]) -> tuple[TracePod, ...]:
    """Return the pods of a list in its order.

    Raises:
        ListError: With the first line that cannot be meant.
    """
    pods: dict[str, TracePod] = {}
    for line, row in _rows(lines, POD_COLUMNS):
        name = _text(row, line, "name")
        if name in pods:
            raise ListError(line, "name", f"{name[:_SHOWN]!r} again", "a name of its own")
        gpus = _whole(row, line, "num_gpu", 0, MAX_GPUS)
        milli = _whole(row, line, "gpu_milli", 1 if gpus else 0, MAX_AMOUNT)
        if gpus > 1 and milli < WHOLE_GPU_MILLI:
            expected = f"{WHOLE_GPU_MILLI}, because {gpus} GPUs are asked for"
            raise ListError(line, "gpu_milli", repr(str(milli)), expected)
        models = row.get(MODEL_COLUMN) or ""
        if models and not all(part.strip() for part in models.split("|")):
            raise ListError(line, MODEL_COLUMN, repr(models[:_SHOWN]), "models joined by |")
        pods[name] = TracePod(
            name,
            _whole(row, line, "cpu_milli", 0, MAX_AMOUNT),
            _whole(row, line, "memory_mib", 0, MAX_AMOUNT),
            gpus,
            min(milli, WHOLE_GPU_MILLI) if gpus else 0,
            models if gpus else "",
        )
    if not pods:
        raise ListError(2, "", "no pod", "at least one")
    return tuple(pods.values())


def _rows(
    lines: Iterable[str], columns: tuple[str, ...]
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each row by column name with the line on which it ends."""
    reader = csv.reader(lines, strict=True)
    header = _next(reader)
    names = [name.strip() for name in header or ()]
    for column in columns:
        if column not in names:
            text = ",".join(names)[:_SHOWN]
            found = (text if text.isprintable() else repr(text)) or "nothing"
            raise ListError(1, column, found, f"a header with {', '.join(columns)}")
    for column in (*columns, MODEL_COLUMN):
        if names.count(column) > 1:
            raise ListError(1, column, "it twice", "each column once")
    count = 0
    while (row := _next(reader)) is not None:
        if not row:
            continue
        count += 1
        if count > MAX_ROWS:
            raise ListError(reader.line_num, "", "one more row", f"at most {MAX_ROWS}")
        if len(row) != len(names):
            expected = f"{len(names)}, as the header has"
            raise ListError(reader.line_num, "", f"{len(row)} values", expected)
        yield reader.line_num, dict(zip(names, row, strict=True))


class _Reader(Protocol):
    """What `csv.reader` returns, whose type has no public name."""

    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...

    def __iter__(self) -> Iterator[list[str]]: ...


def _next(reader: _Reader) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ListError(reader.line_num, "", str(error), "a row of a CSV file") from error


def _text(row: Mapping[str, str], line: int, column: str) -> str:
    text = row[column].strip()
    if not text:
        raise ListError(line, column, "nothing", "a name")
    return text


def _whole(row: Mapping[str, str], line: int, column: str, low: int, high: int) -> int:
    text = row[column].strip()
    # Longer than any number allowed: not worth converting, and never shown whole.
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    found = repr(text[:_SHOWN]) if text else "nothing"
    raise ListError(line, column, found, f"a whole number from {low} to {high}")
