"""The lists of jobs: every filter is answered from an index, in the order of the list.

A filter of several values (statuses, projects) is read as one short list for each value and
merged, because an index keeps the order of a list only for one value.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, exists, func, select

from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import HOLDING
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository.attempts import attempts, replicas
from gpuplane.domains.jobs.repository.jobs import jobs, labels, load_jobs
from gpuplane.domains.jobs.rules import Job, JobFilter
from gpuplane.domains.jobs.rules.scaling import GROWING
from gpuplane.kit.pagination import Page, PageRequest, encode_cursor

SORTS: Mapping[str, tuple[ColumnElement[Any], ...]] = {
    "created_at": (jobs.c.created_at, jobs.c.id),
    "name": (jobs.c.name, jobs.c.created_at, jobs.c.id),
}
"""Order by name of the sort; a leading `-` turns it round."""
_EQUAL = (
    "job_type",
    "priority",
    "cluster_id",
    "tenant_id",
    "project_id",
    "source_type",
    "source_id",
    "queue",
    "gpu_model",
    "cost_centre",
    "data_classification",
    "user_id",
    "array_id",
)


_NARROW = ("source_id", "array_id", "user_id")
"""Filters that few jobs pass: the list is read from their index, not from one of the wide ones."""
_WIDE = frozenset({"job_type", "priority", "source_type", "gpu_model", "data_classification"})


@dataclass(frozen=True, slots=True)
class _Row:
    keys: tuple[Any, ...]
    job_id: JobId


def list_jobs(
    session: ReadSession,
    wanted: JobFilter,
    places: Sequence[tuple[str, UUID]] | None,
    page: PageRequest,
    sort: str,
) -> Page[Job]:
    """Return one page of jobs.

    Args:
        session: Where to read.
        wanted: What the list is narrowed by.
        places: (`tenant_id` or `project_id`, id) of what the caller may see; None for all.
        page: The page asked for; its cursor was decoded with the same sort.
        sort: A name of `SORTS`, with `-` before it for the reverse.
    """
    by_label = bool(wanted.labels) and sort.lstrip("-") == "created_at"
    keys = (labels.c.created_at, labels.c.job_id) if by_label else SORTS[sort.lstrip("-")]
    rows: list[_Row] = []
    has_more = False
    for branch in _branches(wanted, places, keys, by_label=by_label):
        found = load_page(session, branch, keys, page, lambda row: _row(row, keys), sort=sort)
        rows.extend(found.items)
        has_more = has_more or found.next_cursor is not None
    unique = {row.job_id: row for row in rows}
    ordered = sorted(
        unique.values(), key=lambda row: _comparable(row.keys), reverse=sort.startswith("-")
    )
    shown = ordered[: page.limit]
    known = load_jobs(session, [row.job_id for row in shown])
    items = tuple(known[row.job_id] for row in shown if row.job_id in known)
    if shown and (has_more or len(ordered) > page.limit):
        return Page(items, encode_cursor(sort, shown[-1].keys))
    return Page(items)


def _row(row: Any, keys: Sequence[ColumnElement[Any]]) -> _Row:
    return _Row(tuple(row[key] for key in keys), row[keys[-1]])


def _branches(
    wanted: JobFilter,
    places: Sequence[tuple[str, UUID]] | None,
    keys: Sequence[ColumnElement[Any]],
    *,
    by_label: bool,
) -> list[Select[Any]]:
    conditions = _conditions(wanted, skip_label=by_label)
    # Only a job that runs has replicas to miss, and there are few of those among all.
    running = tuple(sorted(map(str, HOLDING))) if wanted.replicas_missing else (None,)
    statuses: Sequence[str | None] = wanted.statuses or running
    seen: Sequence[tuple[str, UUID] | None] = places if places is not None else (None,)
    branches = []
    for status, place in itertools.product(statuses, seen):
        query = select(*keys)
        if by_label:
            key, value = wanted.labels[0]
            query = query.join(jobs, jobs.c.id == labels.c.job_id).where(
                labels.c.key == key, labels.c.value == value
            )
        query = query.where(*conditions)
        if status is not None:
            query = query.where(_column("status", wanted) == status)
        if place is not None:
            query = query.where(jobs.c[place[0]] == place[1])
        branches.append(query)
    return branches


def _conditions(wanted: JobFilter, *, skip_label: bool) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for name in _EQUAL:
        value = getattr(wanted, name)
        if value is not None:
            found.append(_column(name, wanted) == value)
    if wanted.name_prefix:
        found += [
            jobs.c.name >= wanted.name_prefix,
            jobs.c.name < _after_prefix(wanted.name_prefix),
        ]
    if wanted.created_since is not None:
        found.append(jobs.c.created_at >= wanted.created_since)
    if wanted.created_until is not None:
        found.append(jobs.c.created_at < wanted.created_until)
    if wanted.replicas_missing:
        found.append(_misses_replicas())
    for key, value in wanted.labels[1:] if skip_label else wanted.labels:
        other = labels.alias()
        found.append(
            exists()
            .where(
                other.c.key == key,
                other.c.value == value,
                other.c.created_at == jobs.c.created_at,
                other.c.job_id == jobs.c.id,
            )
            .correlate(jobs)
        )
    return found


def _misses_replicas() -> ColumnElement[bool]:
    """Return the condition that a job's attempt has fewer replicas than it is to have."""
    staying = (
        select(func.count())
        .where(replicas.c.attempt_id == attempts.c.id, replicas.c.leaving_at.is_(None))
        .correlate(attempts)
        .scalar_subquery()
    )
    return (
        exists()
        .where(
            attempts.c.id == jobs.c.current_attempt_id,
            attempts.c.state.in_(sorted(GROWING)),
            attempts.c.replicas_wanted > staying,
        )
        .correlate(jobs)
    )


def _column(name: str, wanted: JobFilter) -> ColumnElement[Any]:
    """Return a column to compare; a wide one without its index where a narrow filter has one.

    Without statistics SQLite cannot know that a thousand jobs have one source and fifty thousand
    one type; an expression keeps it from choosing the index of the type.
    """
    is_wide = name in _WIDE or name == "status"
    if is_wide and any(getattr(wanted, each) is not None for each in _NARROW):
        return func.coalesce(jobs.c[name], "")
    return jobs.c[name]


def _after_prefix(prefix: str) -> str:
    """Return the smallest text after every text that begins with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _comparable(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(key.bytes if isinstance(key, UUID) else key for key in keys)
