"""Copies of the whole database: made while it is used, and put back while it is not.

SQLite by its online backup; PostgreSQL by the server's own `pg_dump` and `pg_restore`, which must
be installed. A copy is checked before it gets its name, so a file with that name is whole.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL

from gpuplane.db.schema import head_revision

SIDES = ("-wal", "-shm")
"""What SQLite keeps beside a file; meaningless, and harmful, beside another one."""
MAX_SENTENCE_CHARS = 500


class CopyRefused(Exception):
    """A backup or restore that cannot be done; the text is a sentence with the reason."""


def backup_sqlite(source: Path, target: Path) -> int:
    """Copy a SQLite database at one instant, while others write to it; returns its bytes.

    Raises:
        CopyRefused: If there is no database, the target exists, or the copy is not sound.
    """
    if not source.exists():
        raise CopyRefused(f"There is no database at {source}.")
    _refuse_existing(target)
    new = target.with_name(target.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with _opened(source) as reading, _opened(new) as writing:
            reading.backup(writing)
            writing.execute("PRAGMA journal_mode=DELETE")
        read_revision(new)
        _make_durable(new)
        new.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise CopyRefused(f"The copy could not be written to {target}: {error}.") from error
    finally:
        new.unlink(missing_ok=True)
    _make_durable(target.parent)
    return target.stat().st_size


def restore_sqlite(copy: Path, target: Path, replaced: Path) -> Path | None:
    """Put a copy in the place of a SQLite database that nobody uses, and keep what was there.

    Args:
        copy: What `backup_sqlite` wrote.
        target: The database.
        replaced: Where the database that was there goes.

    Returns:
        `replaced`, or None when nothing was there.

    Raises:
        CopyRefused: If the copy is not sound or newer than this version of the product.
    """
    revision = read_revision(copy)
    if revision > head_revision():
        raise CopyRefused(
            f"The copy is at revision {revision}, this version knows {head_revision()}: restore it "
            "with a version at least as new as the one that wrote it."
        )
    new = target.with_name(target.name + ".restoring")
    try:
        shutil.copyfile(copy, new)
        new.chmod(0o600)
        _make_durable(new)
        kept = None
        if target.exists():
            with _opened(target) as old:
                old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            os.link(target, replaced)
            kept = replaced
        for side in SIDES:
            Path(f"{target}{side}").unlink(missing_ok=True)
        new.replace(target)
        _make_durable(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise CopyRefused(f"The database could not be replaced: {error}.") from error
    finally:
        new.unlink(missing_ok=True)
    return kept


def read_revision(path: Path) -> str:
    """Return the revision of a SQLite copy after a look at its every page.

    Raises:
        CopyRefused: If it is no sound database of this product.
    """
    if not path.is_file():
        raise CopyRefused(f"There is no file {path}.")
    try:
        with _opened(path) as database:
            sound = database.execute("PRAGMA integrity_check").fetchone()[0]
            row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise CopyRefused(f"{path} is no database of this product: {error}.") from error
    if sound != "ok":
        raise CopyRefused(f"{path} is damaged: {sound[:MAX_SENTENCE_CHARS]}.")
    if row is None:
        raise CopyRefused(f"{path} is no database of this product: it names no revision.")
    return str(row[0])


def backup_postgresql(url: URL, target: Path) -> int:
    """Dump a PostgreSQL database at one instant; returns the dump's bytes.

    Raises:
        CopyRefused: If `pg_dump` is not installed or fails.
    """
    _refuse_existing(target)
    new = target.with_name(target.name + ".new")
    try:
        _run("pg_dump", url, ["--format=custom", "--no-owner", f"--file={new}"])
        _make_durable(new)
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)
    _make_durable(target.parent)
    return target.stat().st_size


def restore_postgresql(copy: Path, url: URL, replaced: Path) -> Path:
    """Put a dump in the place of what a PostgreSQL database holds, in one transaction.

    Returns:
        `replaced`, a dump of what was there.

    Raises:
        CopyRefused: If the server's programs are not installed or one of them fails.
    """
    if not copy.is_file():
        raise CopyRefused(f"There is no file {copy}.")
    backup_postgresql(url, replaced)
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    _run("pg_restore", url, [*options, str(copy)])
    return replaced


def _run(program: str, url: URL, options: list[str]) -> None:
    """Run one of PostgreSQL's programs; the password travels in the environment, not in `ps`."""
    found = shutil.which(program)
    if found is None:
        raise CopyRefused(
            f"{program} is not installed here. Install PostgreSQL's client programs (Debian: "
            "apt install postgresql-client), at least as new as the server."
        )
    environment = dict(os.environ)
    if url.password is not None:
        environment["PGPASSWORD"] = str(url.password)
    plain = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [found, f"--dbname={plain}", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip()[-MAX_SENTENCE_CHARS:]
        raise CopyRefused(f"{program} ended with exit code {done.returncode}: {said}")


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise CopyRefused(f"{target} exists already; a backup never replaces a file.")
    if not target.parent.is_dir():
        raise CopyRefused(f"There is no folder {target.parent}.")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def _make_durable(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
