"""`gpuplane why`: the dominant reason, the counts per filter, the smallest change."""

import sys
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError
from gpuplane.cli.lookups import find_job
from gpuplane.cli.output import Output, note, output_option, paint, paint_status, show_data

BAR = 24


@click.command()
@click.argument("job")
@click.option("--change/--no-change", default=True, show_default=True,
              help="Look for the smallest change that would let it start now.")  # fmt: skip
@output_option
def why(job: str, output: Output, *, change: bool) -> None:
    """Say why a job stands where it stands, and what would change it."""
    client = Client()
    found = find_job(client, job)
    path = f"/jobs/{found['id']}/why"
    if output.is_data:
        show_data(client.get(path, change=change or None), output)
        return
    answer = client.get(path)
    _show(found, answer)
    if change and answer["status"] in ("queued", "preempted"):
        _show_change(client, path, answer)
    elif answer["fix"]:
        click.echo(f"\nwhat to do: {answer['fix']}")


def _show_change(client: Client, path: str, known: dict[str, Any]) -> None:
    """Look for the smallest change; that takes longer, so the reason is shown before."""
    if sys.stderr.isatty():
        click.echo(paint("looking for the smallest change …", "dim", err=True), err=True)
    try:
        answer = client.get(path, change=True)
    except ApiError as error:
        if error.status < 500:
            raise
        note(f"gpuplane: the smallest change is not known just now ({error.message})")
        answer = known
    if answer["counts"] != known["counts"]:
        _show_counts(answer)
    if answer.get("prediction"):
        click.echo(f"\nonce it runs: {answer['prediction']['sentence']}")
    if answer["change"]:
        smallest = answer["change"]
        sentence = paint(smallest["sentence"], "bold")
        click.echo(f"\nsmallest change that would start it now: {sentence}")
        for each in filter(None, (smallest, smallest["also"])):
            click.echo(f"  {each['field']} = {each['value']}")
    if answer["fix"]:
        click.echo(f"\nwhat to do: {answer['fix']}")


def _show(job: dict[str, Any], answer: dict[str, Any]) -> None:
    state = paint_status(answer["status"])
    condition = f" ({answer['condition']})" if answer["condition"] else ""
    reason = f": {paint(answer['reason'], 'bold')}" if answer["reason"] else ""
    click.echo(f"{job['name']} is {state}{condition}{reason}")
    if answer["sentence"]:
        click.echo(f"  {answer['sentence']}")
    for line in answer["explanation"]:
        if line != answer["sentence"]:
            click.echo(f"  {line}")
    _show_counts(answer)


def _show_counts(answer: dict[str, Any]) -> None:
    counts = [each for each in answer["counts"] if each["nodes"]]
    if not counts:
        return
    click.echo("\nnodes, by the filter that refused them:")
    most = max(each["nodes"] for each in counts)
    width = max(len(each["word"]) for each in counts)
    for each in sorted(counts, key=lambda one: (-one["nodes"], one["word"])):
        bar = "█" * max(1, round(BAR * each["nodes"] / most))
        click.echo(f"  {each['word']:<{width}}  {each['nodes']:>5}  {paint(bar, 'yellow')}")
