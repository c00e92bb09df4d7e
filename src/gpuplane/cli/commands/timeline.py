"""`gpuplane timeline`: a Gantt chart in the terminal, by job or by GPU."""

from typing import Any

import click

from gpuplane.cli.charts import ACTUAL, EXPECTED, Line, Span, draw, fit, letters
from gpuplane.cli.client import Client, segment
from gpuplane.cli.output import (
    STATUS_STYLES,
    Output,
    note,
    output_option,
    paint,
    show_data,
    terminal_width,
)
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import instant_of, model_text

PAST_S, AHEAD_S = 3_600, 6 * 3_600
"""What is asked for unless told; the chart then fits what is there."""
NO_END_S = 900
"""How far a bar without a known end reaches beyond now."""
COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red", "bright_green", "bright_cyan")
DEVICE_MARKS = {"free": ("·", "dim"), "down": ("x", "red"), "reserved": ("r", "yellow")}


@click.command()
@click.argument("cluster", required=False)
@click.option("--cluster", "named", help="The same, as an option.")
@click.option(
    "--by",
    type=click.Choice(["job", "gpu"]),
    default="job",
    show_default=True,
    help="One line a job with what is expected, or one a GPU with what it did.",
)
@click.option("--from", "since", type=INSTANT, help="Left edge (or -2h).")
@click.option("--to", "until", type=INSTANT, help="Right edge (or +2h).")
@click.option("--node", help="Only GPUs of this node (with --by gpu).")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Lines at most, of each cluster.",
)
@output_option
def timeline(
    cluster: str | None,
    named: str | None,
    by: str,
    since: str | None,
    until: str | None,
    node: str | None,
    limit: int,
    output: Output,
) -> None:
    """Draw what ran, runs and is expected: solid is what happened, light is the estimate.

    Without CLUSTER every cluster with something to show is drawn.
    """
    client = Client()
    cluster = cluster or named
    names = [cluster] if cluster else [each["name"] for each in client.rows("/clusters")]
    if output.is_data:
        found = [_load(client, name, by, since, until) for name in names]
        show_data(found[0] if cluster else {"items": found}, output)
        return
    drawn = 0
    for name in names:
        answer = _load(client, name, by, since, until)
        lines, left_out = (
            _gpu_lines(answer, node, limit) if by == "gpu" else _job_lines(answer, limit)
        )
        if not lines and not cluster:
            continue
        drawn += 1
        _draw(answer, lines, left_out, fitted=since is None and until is None)
    if not drawn:
        note("Nothing ran within the last hour and nothing waits.")


def _load(
    client: Client, cluster: str, by: str, since: str | None, until: str | None
) -> dict[str, Any]:
    path = f"/clusters/{segment(cluster)}"
    if by == "gpu":
        answer: dict[str, Any] = client.get(f"{path}/timeline", from_=since, to=until)
        return answer
    from datetime import timedelta

    from gpuplane.cli.words import now

    at = now()
    answer = client.get(
        f"{path}/schedule",
        since=since or (at - timedelta(seconds=PAST_S)).isoformat(),
        until=until or (at + timedelta(seconds=AHEAD_S)).isoformat(),
    )
    return answer


def _draw(answer: dict[str, Any], lines: list[Line], left_out: int, *, fitted: bool) -> None:
    simulated = paint(" (simulated)", "yellow") if answer["simulated"] else ""
    click.echo(f"{paint(answer['cluster'], 'bold')}{simulated}")
    if not lines:
        click.echo("  nothing in this window")
        return
    left = _seconds(answer.get("since") or answer["from_at"])
    right = _seconds(answer.get("until") or answer["to_at"])
    now = _seconds(answer["now"]) if "now" in answer else right
    if fitted:
        spans = [(max(left, span.start), span.end) for line in lines for span in line.spans]
        left, right = fit(spans, now)
    for text in draw(lines, left, right, now, terminal_width(), paint):
        click.echo(text)
    if left_out:
        click.echo(f"… and {left_out} more; -n shows them")
    if not answer.get("is_whole", answer.get("complete", True)):
        note("The window holds more than one answer; --from and --to narrow it.")
    click.echo()


def _job_lines(answer: dict[str, Any], limit: int) -> tuple[list[Line], int]:
    """Return the lines and how many were left out: of what is over, the oldest go first."""
    now = _seconds(answer["now"])
    rows = [row for row in answer["rows"] if row["start"]]
    rows.sort(key=lambda row: (not row["is_end_estimated"], -_seconds(row["end"] or row["start"])))
    shown = sorted(rows[:limit], key=lambda row: (_seconds(row["start"]), row["name"]))
    return [_job_line(row, now) for row in shown], len(rows) - len(shown)


def _job_line(row: dict[str, Any], now: float) -> Line:
    start = _seconds(row["start"])
    end = _seconds(row["end"]) if row["end"] else None
    status = row["status"]
    style = STATUS_STYLES.get(status, "green")
    gpus = f" {row['gpu_count']}x{model_text(row['gpu_type']) or 'GPU'}" if row["gpu_count"] else ""
    label = f"{row['name']}{gpus}"
    if row["is_estimate"]:
        why = f" {row['reason']}" if row["reason"] else ""
        if end is None:  # one cell at the present: no start is known that could be drawn
            return Line(label, [Span(start, start, EXPECTED, "yellow")], f"{status}{why}")
        return Line(label, [Span(start, end, EXPECTED, "yellow")], f"{status}{why}")
    if end is not None and not row["is_end_estimated"]:
        return Line(label, [Span(start, end, ACTUAL, style)], f"{status} {row['reason']}".rstrip())
    expected = end if end is not None else now + NO_END_S
    spans = [
        # What happened is drawn over what is expected: a job that has just begun shows both.
        Span(max(now, start), expected, EXPECTED, style),
        Span(start, max(now, start), ACTUAL, style),
    ]
    return Line(label, spans, status if end is not None else f"{status}, no end known")


def _gpu_lines(answer: dict[str, Any], node: str | None, limit: int) -> tuple[list[Line], int]:
    """Return a line for each GPU that did something, and how many were left out."""
    right = _seconds(answer["to_at"])
    devices = [each for each in answer["devices"] if node in (None, each["node"])]
    used = [
        each
        for each in devices
        if node or any(part["state"] != "free" for part in each["intervals"])
    ]
    left_out = max(0, len(used) - limit)
    # What does something now comes before what did something, and each keeps its place.
    chosen = sorted(used, key=lambda each: each["intervals"][-1]["state"] == "free")[:limit]
    used = [each for each in used if each in chosen]
    keys = [_holder(part) for each in used for part in each["intervals"] if part["shares"]]
    marks = letters(keys)
    styles = {key: COLOURS[at % len(COLOURS)] for at, key in enumerate(marks)}
    lines = [
        Line(
            f"{each['node']}/{each['index']} {model_text(each['model'])}",
            [_device_span(part, right, marks, styles) for part in each["intervals"]],
        )
        for each in used
    ]
    if marks:
        note(
            "  ".join(paint(f"{mark} {key}", styles[key], err=True) for key, mark in marks.items())
        )
    return lines, left_out


def _device_span(part: dict[str, Any], right: float, marks: Any, styles: dict[str, str]) -> Span:
    start = _seconds(part["from_at"])
    end = _seconds(part["to_at"]) if part["to_at"] else right
    if part["state"] in DEVICE_MARKS:
        return Span(start, end, *DEVICE_MARKS[part["state"]])
    holder = _holder(part)
    return Span(start, end, marks.get(holder, ACTUAL), styles.get(holder, ""))


def _holder(part: dict[str, Any]) -> str:
    names = [share["job_name"] or "another tenant" for share in part["shares"]]
    return " + ".join(dict.fromkeys(names))


def _seconds(text: str) -> float:
    instant = instant_of(text)
    return 0.0 if instant is None else instant.timestamp()
