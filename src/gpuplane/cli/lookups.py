"""Finds the thing a person means: by id, by name, or by a unique part of either.

What is only looked at may be named by part of its name. What is changed or ended is named by its
whole name or by its id: a word that happens to begin another job's name must not end that job.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any

from gpuplane.cli.client import Client, segment
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.words import age
from gpuplane.kit.ids import find_id

LOOKED_AT = 2_000
"""Jobs looked through for a part of an id; an older one is named in full."""
SURE_PART = 8
"""Characters of an id's beginning or end that name what is changed; lists show as many."""
SHOWN = 8
LAST_MS = 253_370_764_799_999
"""The end of the year 9998, the last that the API takes."""
OVER = frozenset({"completed", "failed", "cancelled"})
"""Statuses of a job that is over."""
_HEX = re.compile(r"[0-9a-f-]{4,36}")
_PREFIX = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{0,4})?.*")


def is_uuid(text: str) -> bool:
    """Return whether a text is a whole id."""
    return find_id(text) is not None


def find_job(client: Client, key: str) -> dict[str, Any]:
    """Return the job of an id, a name, or a unique part of either (beginning or end of an id).

    Of jobs with one name the unfinished one is meant, and the newest if all are over.

    Raises:
        CliError: If there is none, or more than one.
    """
    if is_uuid(key):
        return _dict(client.get(f"/jobs/{segment(key)}"))
    found = _newest(_named(client, key)) or _by_part_of_id(client, key.lower())
    return _only(client, key, found or _beginning(client, key))


def find_job_exactly(client: Client, key: str, **query: Any) -> dict[str, Any]:
    """Return the job of an id, a whole name, or 8 or more characters that only one id has.

    Those are an id's beginning, or its end, which lists show; never part of a name. Of jobs with
    one name in one project the unfinished one is meant, and the newest if all are over; between
    projects nothing is chosen, for an admin sees those of every tenant.

    Args:
        client: Whom to ask.
        key: What the person wrote.
        query: Filters of the list, within which a name is looked up.

    Raises:
        CliError: If there is none, or more than one.
    """
    if is_uuid(key):
        return _dict(client.get(f"/jobs/{segment(key)}"))
    named = _named(client, key, **query)
    if len({job["project_id"] for job in named}) > 1:
        raise _several("jobs", key, sorted(named, key=lambda job: job["status"] in OVER))
    found = _newest(named)
    if not found and len(key) >= SURE_PART:
        found = _by_part_of_id(client, key.lower())
    near = [] if found else _beginning(client, key, **query)
    names = " or ".join(sorted({job["name"] for job in near})[:3])
    fix = f"Write the whole name, {names}, or an id." if names else ""
    return _only(client, key, found, fix)


def find_exactly(client: Client, path: str, key: str, noun: str, **query: Any) -> dict[str, Any]:
    """Return the row of a list that an id or a whole name means, to be changed or built on.

    Args:
        client: Whom to ask.
        path: The list.
        key: What the person wrote.
        noun: What the rows are called, in the singular.
        query: Further filters of the list.

    Raises:
        CliError: If there is none, or more than one.
    """
    found = _by_id(client, path, key)
    return pick_exactly(client.items(path, **query), key, noun) if found is None else found


def find_one(client: Client, path: str, key: str, noun: str) -> dict[str, Any]:
    """Return the row of a list that an id, a name or a unique part of either means, to be read.

    Args:
        client: Whom to ask.
        path: The list.
        key: What the person wrote.
        noun: What the rows are called, in the singular.

    Raises:
        CliError: If there is none, or more than one.
    """
    found = _by_id(client, path, key)
    return pick(client.items(path), key, noun) if found is None else found


def pick_exactly(rows: Iterable[dict[str, Any]], key: str, noun: str) -> dict[str, Any]:
    """Return the row of an id, of a whole name, or of 8 or more characters of one id alone.

    Raises:
        CliError: If there is none, with the nearest names, or more than one.
    """
    found = list(rows)
    matches = _whole(found, key)
    if not matches and len(key) >= SURE_PART:
        matches = [row for row in found if _has_part(str(row.get("id", "")), key.lower())]
    return _pick_only(matches, found, key, noun)


def pick(rows: Iterable[dict[str, Any]], key: str, noun: str) -> dict[str, Any]:
    """Return the row of an id, a name or a unique part of either; only to be looked at.

    Raises:
        CliError: If there is none, or more than one.
    """
    found = list(rows)
    matches = (
        _whole(found, key)
        or _beginning_with(found, key)
        or [row for row in found if _has_part(str(row.get("id", "")), key.lower())]
    )
    return _pick_only(matches, found, key, noun)


def _by_id(client: Client, path: str, key: str) -> dict[str, Any] | None:
    """Return the row of a whole id, None where the list has to be asked."""
    if not is_uuid(key):
        return None
    try:
        return _dict(client.get(f"{path}/{segment(key)}"))
    except ApiError as error:
        if error.status != 405:
            raise
    return None


def _whole(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the rows of a whole id or name; nothing is meant by an empty word."""
    return [row for row in rows if key and key in (row.get("id"), row.get("name"))]


def _beginning_with(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [row for row in rows if key and str(row.get("name") or "").startswith(key)]


def _pick_only(
    matches: list[dict[str, Any]], rows: list[dict[str, Any]], key: str, noun: str
) -> dict[str, Any]:
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise _several(f"{noun}s", key, matches)
    raise CliError(f"There is no {noun} {key!r}.", fix=_nearest(rows, key), code=Exit.NOT_FOUND)


def _nearest(rows: list[dict[str, Any]], key: str) -> str:
    """Return the sentence that offers the nearest names, or else some that there are."""
    names = [str(row.get("name") or row.get("id")) for row in rows]
    near = [str(row["name"]) for row in _beginning_with(rows, key)]
    near += difflib.get_close_matches(key, names, SHOWN)
    if near:
        return f"Nearest names: {', '.join([*dict.fromkeys(near)][:SHOWN])}."
    return f"Known: {', '.join(names[:SHOWN])}." if names else ""


def project_fields(client: Client, project: str | None) -> dict[str, Any]:
    """Return what a body says about its project: nothing unless one is named."""
    name = project or client.target.project
    return {} if name is None else {"project": name}


def _only(client: Client, key: str, found: list[dict[str, Any]], fix: str = "") -> dict[str, Any]:
    """Return the whole of the one job that was found."""
    if len({job["id"] for job in found}) == 1:
        return _dict(client.get(f"/jobs/{segment(found[0]['id'])}"))
    if not found:
        raise CliError(
            f"There is no job {key!r}.",
            fix=fix or "`gpuplane ps -a` lists them.",
            code=Exit.NOT_FOUND,
        )
    raise _several("jobs", key, found)


def _named(client: Client, key: str, **query: Any) -> list[dict[str, Any]]:
    """Return the jobs of a whole name: the list comes by name, so they stand first in it."""
    if not _is_name(key):
        return []
    listed = client.items("/jobs", name=key, **query)
    return list(takewhile(lambda job: job["name"] == key, listed))


def _beginning(client: Client, key: str, **query: Any) -> list[dict[str, Any]]:
    """Return some jobs whose names begin with a word."""
    return list(client.items("/jobs", limit=50, name=key, **query)) if _is_name(key) else []


def _newest(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of jobs with one name those that can be meant: the unfinished, else the newest.

    One that is being stopped is on its way out, so another that is not comes before it.
    """
    unfinished = [job for job in jobs if job["status"] not in OVER]
    steady = [job for job in unfinished if job["condition"] != "Stopping"]
    return steady or unfinished or sorted(jobs, key=lambda job: str(job["created_at"]))[-1:]


def _by_part_of_id(client: Client, key: str) -> list[dict[str, Any]]:
    if not _HEX.fullmatch(key):
        return []
    between = _instants(key) if _PREFIX.fullmatch(key) else None
    if between is not None:
        since, until = between
        jobs = client.items("/jobs", created_since=since, created_until=until, limit=LOOKED_AT)
        found = [job for job in jobs if job["id"].startswith(key)]
        if found:
            return found
    newest = islice(client.items("/jobs", limit=LOOKED_AT), LOOKED_AT)
    return [job for job in newest if _has_part(job["id"], key)]


def _instants(prefix: str) -> tuple[str, str] | None:
    """Return the instants between which an id that begins so was made, None where none can be.

    Its first 48 bits are milliseconds. An id's end, which lists show, reads as any year at all.
    """
    digits = prefix.replace("-", "")[:12]
    low = int(digits.ljust(12, "0"), 16)
    high = int(digits.ljust(12, "f"), 16)
    if low > LAST_MS:
        return None
    # The row is written a moment after its id is made.
    return _text(low - 1_000), _text(high + 60_000)


def _text(ms: int) -> str:
    return datetime.fromtimestamp(min(max(ms, 0), LAST_MS) / 1000, UTC).isoformat()


def _has_part(identity: str, key: str) -> bool:
    return len(key) >= 4 and (identity.startswith(key) or identity.endswith(key))


def _is_name(key: str) -> bool:
    return bool(re.fullmatch(r"[a-z0-9][-a-z0-9]{0,62}", key))


def _several(nouns: str, key: str, found: list[dict[str, Any]]) -> CliError:
    """Return the refusal that lists what may be meant: by ids, or by names where rows have none."""
    have_ids = all("id" in row for row in found)
    lines = [
        f"{row['id'] if have_ids else ''}  {row.get('name') or ''}  {_place_of(row)}"
        f"{row.get('status') or ''}  {age(row.get('created_at'))}".strip()
        for row in found[:SHOWN]
    ]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return CliError(
        f"{len(found)} {nouns} are meant by {key!r}.",
        fix="\n  ".join([f"Name one by its {'id' if have_ids else 'whole name'}:", *lines, *more]),
        code=Exit.USAGE,
    )


def _place_of(row: dict[str, Any]) -> str:
    """Return tenant and project of a row that says them, or its cluster, before its status."""
    if "tenant" in row and "project" in row:
        return f"{row['tenant']}/{row['project']}  "
    return f"on {row['cluster']}  " if isinstance(row.get("cluster"), str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return dict(value)


def attempt_of_now(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attempt of a job that says where it is, or was when it ended.

    It is empty while the job waits for another try: the one before says where it was.
    """
    attempt: Mapping[str, Any] = job["current_attempt"] or {}
    waits = attempt.get("state") == "ended" and job["status"] not in OVER
    return {} if waits else attempt
