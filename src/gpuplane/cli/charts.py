"""Draws Gantt charts of characters: solid is what happened, light is what is expected. Pure.

Instants are seconds since the epoch. Colours are a function from (text, style) to text, so that a
pipe gets plain characters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

ACTUAL, EXPECTED, NOW = "█", "░", "│"
MIN_CHART, MIN_LABEL, MAX_LABEL = 20, 8, 34
TICK_CHARS = 14
"""One tick of the axis takes at least so many characters."""
STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800,
)  # fmt: skip

Paint = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a line: from `start` to `end` in one character and style.

    Args:
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        mark: The character it is drawn with.
        style: Its colour.
    """

    start: float
    end: float
    mark: str = ACTUAL
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its label, its stretches in order, and what stands behind them."""

    label: str
    spans: Sequence[Span]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a chart shows: from `since` to `until`, with the present marked, in `width` cells."""

    since: float
    until: float
    now: float
    width: int

    def cell(self, instant: float) -> int:
        """Return the cell in which an instant lies, 0 to width - 1."""
        share = (instant - self.since) / (self.until - self.since)
        return min(self.width - 1, max(0, int(share * self.width)))


def draw(
    lines: Sequence[Line], since: float, until: float, now: float, width: int, paint: Paint
) -> list[str]:
    """Return a chart as lines of text, the axis first.

    Args:
        lines: What to draw.
        since: The left edge.
        until: The right edge, after `since`.
        now: The present instant, marked where it lies inside.
        width: Characters of a line.
        paint: Colours text, or leaves it.
    """
    notes = max((len(line.note) for line in lines), default=0)
    room = max(MIN_LABEL, width - notes - MIN_CHART - 3)
    label = min(MAX_LABEL, room, max((len(line.label) for line in lines), default=0))
    frame = Frame(since, until, now, max(MIN_CHART, width - label - notes - 3))
    drawn = [" " * (label + 1) + text for text in _axis(frame, paint)]
    for line in lines:
        name = line.label if len(line.label) <= label else line.label[: label - 1] + "…"
        bar = _bar(line, frame, paint)
        drawn.append(f"{name:<{label}} {bar} {paint(line.note, 'dim')}".rstrip())
    return drawn


def fit(
    spans: Sequence[tuple[float, float]], now: float, margin: float = 0.04
) -> tuple[float, float]:
    """Return the edges of a chart that shows every stretch and the present."""
    low = min([start for start, _ in spans] + [now])
    high = max([end for _, end in spans] + [now])
    room = max(10.0, (high - low) * margin)
    return low - room, high + room


def tick_step(span_s: float, cells: int) -> int:
    """Return the seconds between two ticks of an axis."""
    most = max(1, cells // TICK_CHARS)
    return next((step for step in STEPS_S if span_s / step <= most), STEPS_S[-1])


def _bar(line: Line, frame: Frame, paint: Paint) -> str:
    cells: list[tuple[str, str]] = [(" ", "")] * frame.width
    if frame.since <= frame.now < frame.until:
        cells[frame.cell(frame.now)] = (NOW, "dim")
    for span in line.spans:
        if span.end <= frame.since or span.start >= frame.until:
            continue
        first = frame.cell(span.start)
        # A stretch that ends where a cell begins does not reach into it, but takes one at least.
        last = max(first, frame.cell(span.end - 1e-6))
        for at in range(first, last + 1):
            cells[at] = (span.mark, span.style)
    return "".join(
        paint("".join(mark for mark, _ in run), style)
        for style, run in groupby(cells, key=lambda cell: cell[1])
    )


def _axis(frame: Frame, paint: Paint) -> list[str]:
    step = tick_step(frame.until - frame.since, frame.width)
    offset = datetime.fromtimestamp(frame.since).astimezone().utcoffset()
    shift = 0.0 if offset is None else offset.total_seconds()
    first = -int(-(frame.since + shift) // step) * step - shift
    names, marks = [" "] * frame.width, ["─"] * frame.width
    tick = first
    while tick < frame.until:
        at = frame.cell(tick)
        text = _tick_text(tick, step)
        if at + len(text) <= frame.width:
            names[at : at + len(text)] = text
            marks[at] = "┬"
        tick += step
    if frame.since <= frame.now < frame.until:
        marks[frame.cell(frame.now)] = "▼"
    return ["".join(names).rstrip(), paint("".join(marks), "dim")]


def _tick_text(instant: float, step: int) -> str:
    local = datetime.fromtimestamp(instant).astimezone()
    if step >= 86_400:
        return local.strftime("%m-%d")
    return local.strftime("%H:%M:%S" if step < 60 else "%H:%M")


def letters(keys: Sequence[str]) -> Mapping[str, str]:
    """Return a letter for each key in order: a to z, A to Z, then `#` for the rest."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    unique = list(dict.fromkeys(keys))
    return {key: alphabet[at] if at < len(alphabet) else "#" for at, key in enumerate(unique)}
