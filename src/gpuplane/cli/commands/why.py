"""`gpuplane why`: the dominant reason, the counts per filter, the smallest change."""

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
    answer = _ask(client, found["id"], change=change)
    if output.is_data:
        show_data(answer, output)
        return
    _show(found, answer)


def _ask(client: Client, job_id: str, *, change: bool) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = client.get(f"/jobs/{job_id}/why", change=change or None)
    except ApiError as error:
        if not change or error.status < 500:
            raise
        note(f"gpuplane: the smallest change is not known just now ({error.message})")
        answer = client.get(f"/jobs/{job_id}/why")
    return answer


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
    counts = [each for each in answer["counts"] if each["nodes"]]
    if counts:
        click.echo("\nnodes, by the filter that refused them:")
        most = max(each["nodes"] for each in counts)
        width = max(len(each["word"]) for each in counts)
        for each in sorted(counts, key=lambda one: (-one["nodes"], one["word"])):
            bar = "█" * max(1, round(BAR * each["nodes"] / most))
            click.echo(f"  {each['word']:<{width}}  {each['nodes']:>5}  {paint(bar, 'yellow')}")
    if answer["change"]:
        change = answer["change"]
        click.echo(f"\nsmallest change that would start it now: {paint(change['sentence'], 'bold')}")
        click.echo(f"  {change['field']} = {change['value']}")
    if answer["fix"]:
        click.echo(f"\nwhat to do: {answer['fix']}")
