"""`gpuplane db`: upgrade, back up, restore and check the database itself, not through the API."""

import os
from datetime import UTC, datetime
from pathlib import Path

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lazy import NearestGroup
from gpuplane.db.copies import (
    CopyRefused,
    backup_postgresql,
    backup_sqlite,
    restore_postgresql,
    restore_sqlite,
)
from gpuplane.db.database import Database
from gpuplane.db.schema import upgrade_schema
from gpuplane.entry.checking import checks_at
from gpuplane.entry.described import SettingsError
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home, HomeInUse
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.entry.refusals import CannotStart, database_refusals, home_refusals
from gpuplane.entry.settings import Settings
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.errors import KubeError

SHOWN_FAULTS = 100
"""Faults shown of each promise; the rest is counted."""


@click.group(cls=NearestGroup, short_help="Upgrade, back up, restore and check the database.")
@click.option("--home", help="Folder of data, keys and logs (GPUPLANE_HOME).")
@click.option("--database-url", help="Database (GPUPLANE_DATABASE_URL).")
@click.pass_context
def db(context: click.Context, home: str | None, database_url: str | None) -> None:
    """Upgrade, back up, restore and check the database, without a control plane."""
    try:
        context.obj = load_settings(os.environ, home=home, database_url=database_url)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


@db.command()
@click.pass_obj
def upgrade(settings: Settings) -> int:
    """Bring the database to this version's schema; a SQLite file is copied first."""
    home = _hold(settings)
    try:
        database = _open(settings)
        try:
            with database_refusals(settings):
                report = upgrade_schema(database.engine)
        except CannotStart as error:
            raise CliError(error.reason, fix=error.fix) from error
        except RuntimeError as error:
            raise CliError(str(error), code=Exit.REFUSED) from error
        finally:
            database.close()
    finally:
        home.close()
    if report.before == report.after:
        click.echo(f"The database is at revision {report.after}; nothing is to be done.")
        return Exit.OK
    click.echo(f"Upgraded from {report.before or 'nothing'} to revision {report.after}.")
    if report.copy is not None:
        click.echo(f"A copy of what was there lies at {report.copy}.")
    return Exit.OK


@db.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.pass_obj
def backup(settings: Settings, file: Path | None) -> int:
    """Copy the database as it is at one instant; a running control plane goes on.

    FILE is a new file; without it the copy goes into the folder `backups` of the home.
    """
    database = _open(settings)
    try:
        suffix = "db" if database.is_sqlite else "dump"
        target = (file or _default_target(settings, "gpuplane", suffix)).absolute()
        if database.is_sqlite:
            size = backup_sqlite(_sqlite_path(database), target)
        else:
            size = backup_postgresql(database.url, target)
    except CopyRefused as error:
        raise CliError(str(error), code=Exit.REFUSED) from error
    finally:
        database.close()
    click.echo(f"Wrote {target} ({size / 1e6:.1f} MB).")
    click.echo(f"Sealed secrets open only with the keys in {settings.home / 'keys'}: keep both.")
    return Exit.OK


@db.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def restore(settings: Settings, file: Path) -> int:
    """Put the copy FILE in the place of the database; what is there now is kept beside it.

    Refused while a control plane runs on the home.
    """
    home = _hold(settings)
    try:
        database = _open(settings, must_exist=False)
        try:
            kept = _restore(settings, database, file)
        except CopyRefused as error:
            raise CliError(str(error), code=Exit.REFUSED) from error
        finally:
            database.close()
    finally:
        home.close()
    click.echo(f"The database is the copy {file}.")
    if kept is not None:
        click.echo(f"What was there before lies at {kept}.")
    click.echo("Jobs submitted since the copy are not known to it; `gpuplane db check` proves it.")
    return Exit.OK


@db.command()
@click.pass_obj
def check(settings: Settings) -> int:
    """Prove that every promise about the rows holds; ends with 1 when one is broken."""
    database = _open(settings)
    try:
        with database_refusals(settings):
            found = database.read_now(
                lambda session: {
                    promise: look(session)
                    for promise, look in checks_at(SystemClock().now_ms()).items()
                }
            )
    except CannotStart as error:
        raise CliError(error.reason, fix=error.fix) from error
    except ProductError as error:
        raise CliError(error.detail, fix=error.fix, code=Exit.FAILED) from error
    finally:
        database.close()
    for promise, faults in found.items():
        click.echo(f"{'ok  ' if not faults else 'FAIL'}  {promise}")
        for fault in faults[:SHOWN_FAULTS]:
            click.echo(f"      {fault}")
        if len(faults) > SHOWN_FAULTS:
            click.echo(f"      … and {len(faults) - SHOWN_FAULTS} more.")
    return Exit.FAILED if any(found.values()) else Exit.OK


@db.command()
@click.option("--cluster", "name", required=True, help="A registered Kubernetes cluster.")
@click.pass_obj
def rebuild(settings: Settings, name: str) -> int:
    """Take jobs that run on a cluster into a database that does not know them.

    For a database that was lost or restored from an old backup. The cluster must be registered
    again, and tenants and projects be there under their names.
    """
    home = _hold(settings)
    try:
        database = _open(settings)
        try:
            with database_refusals(settings):
                done = rebuild_from(database, SealingKeys(home.keys), name)
        except CannotStart as error:
            raise CliError(error.reason, fix=error.fix) from error
        except ProductError as error:
            raise CliError(error.detail, fix=error.fix, code=Exit.FAILED) from error
        except KubeError as error:
            raise CliError(str(error), code=Exit.FAILED) from error
        finally:
            database.close()
    finally:
        home.close()
    for job in done.restored:
        click.echo(f"found running: {job}")
    for job, why in done.refused:
        click.echo(f"left alone: {job}: {why}")
    click.echo(f"{len(done.restored)} taken in, {done.known} known before.")
    return Exit.FAILED if done.refused else Exit.OK


def _restore(settings: Settings, database: Database, file: Path) -> Path | None:
    if database.is_sqlite:
        target = _sqlite_path(database)
        return restore_sqlite(file, target, target.with_name(f"{target.name}.replaced-{_stamp()}"))
    return restore_postgresql(file, database.url, _default_target(settings, "replaced", "dump"))


def _hold(settings: Settings) -> Home:
    """Take the home's lock, so that no control plane runs or starts meanwhile."""
    home = Home(settings.home)
    try:
        with home_refusals(settings.home):
            home.open()
    except HomeInUse as error:
        raise CliError(str(error), code=Exit.REFUSED) from error
    except CannotStart as error:
        raise CliError(error.reason, fix=error.fix) from error
    return home


def _open(settings: Settings, *, must_exist: bool = True) -> Database:
    """Return the database that settings name, if there is one.

    A SQLite file is looked for first, because opening one makes it.
    """
    try:
        with database_refusals(settings):
            database = Database(settings.sql_url)
    except CannotStart as error:
        raise CliError(error.reason, fix=error.fix) from error
    if not must_exist:
        return database
    try:
        if database.is_sqlite and not _sqlite_path(database).exists():
            raise CliError(
                f"There is no database at {_sqlite_path(database)}.",
                fix="`gpuplane up` makes one; GPUPLANE_HOME and GPUPLANE_DATABASE_URL say where.",
                code=Exit.NOT_FOUND,
            )
    except BaseException:
        database.close()
        raise
    return database


def _sqlite_path(database: Database) -> Path:
    return Path(database.url.database or "").absolute()


def _default_target(settings: Settings, stem: str, suffix: str) -> Path:
    folder = settings.home / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{stem}-{_stamp()}.{suffix}"


def _stamp() -> str:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return now.strftime("%Y%m%dT%H%M%S") + f"{now.microsecond // 1000:03d}Z"
