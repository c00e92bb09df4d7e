"""Why a control plane cannot start: one sentence with what is in the way, and one with the fix.

Owns how errors of the disk and of the database read at a start. Never shows a password.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gpuplane.entry.settings import Settings
from gpuplane.kit.errors import Unavailable


class CannotStart(Exception):
    """What is in the way, and what to do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason} {fix}")
        self.reason = reason
        self.fix = fix


@contextlib.contextmanager
def home_refusals(home: Path) -> Iterator[None]:
    """Turn what the disk refuses under the home folder into `CannotStart`."""
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename not in (None, str(home)) else ""
        raise CannotStart(
            f"The home folder {home} cannot be used: {error.strerror or error}{place}.",
            "Set GPUPLANE_HOME, or --home, to a folder that you may write.",
        ) from error


@contextlib.contextmanager
def database_refusals(settings: Settings) -> Iterator[None]:
    """Turn what the database refuses at a start into `CannotStart`."""
    try:
        url = make_url(settings.sql_url)
    except (SQLAlchemyError, ValueError):
        raise CannotStart(
            "GPUPLANE_DATABASE_URL is no URL of a database.",
            "Write it like sqlite:////folder/file.db or postgresql://user:password@host:5432/name.",
        ) from None  # what was raised may hold the password
    try:
        yield
    except (SQLAlchemyError, Unavailable) as error:
        raise _refusal_of(url, error) from error


def _refusal_of(url: URL, error: Exception) -> CannotStart:
    said = _said_by(error, url)
    if url.get_backend_name() == "sqlite":
        return CannotStart(
            f"The database {url.database} cannot be opened: {said}.", _fix_of_file(url, said)
        )
    return CannotStart(
        f"The database {url.database or ''} of PostgreSQL at {url.host or 'this machine'}:"
        f"{url.port or 5432} cannot be used: {said}.",
        "Start PostgreSQL there, or correct GPUPLANE_DATABASE_URL.",
    )


def _fix_of_file(url: URL, said: str) -> str:
    file = Path(url.database or "")
    if not file.parent.is_dir():
        return f"Make the folder {file.parent}, or set GPUPLANE_DATABASE_URL to another file."
    if "not a database" in said or "malformed" in said:
        return (
            "Move that file away and start again, or put a copy in its place with "
            "`gpuplane db restore FILE`."
        )
    return "Make that file one that you may write, or set GPUPLANE_DATABASE_URL to another."


def _said_by(error: Exception, url: URL) -> str:
    """Return the first line of what the database's driver said, without the URL's passwords."""
    cause: BaseException = error.__cause__ or error if isinstance(error, Unavailable) else error
    if isinstance(cause, DBAPIError) and cause.orig is not None:
        cause = cause.orig
    line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    passwords = [url.password, *url.normalized_query.get("password", ())]
    for each in filter(None, passwords):
        line = re.sub(rf"(?<!\w){re.escape(str(each))}(?!\w)", "***", line)
    return line.rstrip(".")
