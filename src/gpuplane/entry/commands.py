"""Commands that run the server's own parts: `up` and `db`."""

import os

import click

from gpuplane.entry.described import SettingsError
from gpuplane.entry.environment import describe_settings, load_settings


@click.command()
@click.option("--home", help="Folder of data, keys and logs (GPUPLANE_HOME).")
@click.option("--host", help="Address to listen on (GPUPLANE_HOST).")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one (GPUPLANE_PORT).")
@click.option("--database-url", help="Database (GPUPLANE_DATABASE_URL).")
@click.option("--settings", "lists_settings", is_flag=True, help="List every setting and leave.")
def up(
    home: str | None,
    host: str | None,
    port: int | None,
    database_url: str | None,
    *,
    lists_settings: bool,
) -> int:
    """Start the control plane in this terminal; Ctrl-C stops it, running jobs go on."""
    if lists_settings:
        for each in describe_settings():
            may_be = f" in {each.values}" if ".." in each.values else ""
            click.echo(f"{each.variable}={each.default}\n    {each.unit}{may_be}; {each.reason}")
        return 0
    try:
        settings = load_settings(
            os.environ, home=home, host=host, port=port, database_url=database_url
        )
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    from gpuplane.entry.server import serve

    try:
        return serve(settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
