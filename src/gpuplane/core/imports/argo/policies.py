"""Adds to a step what its template says of tries, time, caching and mutual exclusion."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.argo.expressions import Lookup, resolved, without_tags
from gpuplane.core.imports.reading import find_seconds, mapping, scalar, sequence, shown
from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.imports.values import Const

MAX_ATTEMPTS = 100


def add_policies(
    template: Mapping[str, Any], step: dict[str, Any], lookup: Lookup, place: str, table: Table
) -> None:
    """Add retry, time-out, cache and limit to the step of a template that does something.

    Raises:
        Malformed: If one of them cannot be read.
    """
    if template.get("retryStrategy") is not None:
        _add_retry(template["retryStrategy"], step, lookup, f"{place}.retryStrategy", table)
    for name in ("activeDeadlineSeconds", "timeout"):
        if template.get(name):
            value = resolved(scalar(template[name], place), lookup, f"{place}.{name}")
            seconds = find_seconds(value.value) if isinstance(value, Const) else None
            if seconds is None or seconds <= 0:
                raise Malformed(f"{place}.{name}", "A time that is known should stand here.")
            step["timeout_seconds"] = seconds
            table.mapped(f"{place}.{name}", name, "timeout_seconds")
    if template.get("memoize"):
        _add_cache(template["memoize"], step, f"{place}.memoize", table)
    if template.get("synchronization"):
        limit = find_limit(template["synchronization"], f"{place}.synchronization", table)
        if limit is not None:
            step["limit"] = {"key": limit[0], "count": limit[1]}


def find_limit(value: Any, place: str, table: Table) -> tuple[str, int] | None:
    """Return the key and the count of the one mutex or semaphore that is asked for.

    How many a semaphore lets in stands in a config map, or in Argo's own database. Where that is
    not among the documents it lets in one: fewer at once is never wrong, only slower.
    """
    found = mapping(value, place)
    wanted: list[tuple[str, Mapping[str, Any]]] = []
    for kind in found:
        if kind in ("mutex", "semaphore"):
            wanted.append((kind, mapping(found[kind], f"{place}.{kind}")))
        elif kind in ("mutexes", "semaphores"):
            wanted += [(kind, mapping(each, f"{place}.{kind}"))
                       for each in sequence(found[kind], f"{place}.{kind}")]  # fmt: skip
        else:
            table.refused(f"{place}.{kind}", kind, "This field is not known to the import.")
    if len(wanted) > 1:
        table.refused(place, "synchronization", "A step or a pipeline has one limit.")
    for kind, each in wanted[:1]:
        if kind.startswith("mutex"):
            # The key of a limit is fixed: one for all runs excludes no less.
            name = without_tags(scalar(each.get("name"), f"{place}.{kind}"), "run")
            table.mapped(f"{place}.{kind}", "mutex", "One of that key at a time.")
        else:
            source = mapping(each.get("configMapKeyRef", each.get("database")), f"{place}.{kind}")
            name = f"{scalar(source.get('name'), place)}-{scalar(source.get('key'), place)}"
            table.mapped(
                f"{place}.{kind}",
                "semaphore",
                "One of that key at a time: its count stands elsewhere. Raise it.",
            )
        return (name[:200], 1) if name.strip("-") else None
    return None


def _add_retry(
    value: Any, step: dict[str, Any], lookup: Lookup, place: str, table: Table
) -> None:  # fmt: skip
    found = mapping(value, place)
    part: dict[str, Any] = {"attempts": MAX_ATTEMPTS}
    for name, each in found.items():
        where = f"{place}.{name}"
        if name == "limit":
            plain = resolved(scalar(each, where), lookup, where)
            try:
                count = int(str(plain.value)) if isinstance(plain, Const) else -1
            except ValueError:
                count = -1
            if count < 0:
                raise Malformed(where, f"A count that is known should stand here, not "
                                       f"{shown(each)}.")  # fmt: skip
            part["attempts"] = min(count + 1, MAX_ATTEMPTS)
        elif name == "backoff":
            _add_backoff(mapping(each, where), part, where)
        elif name == "expression":
            table.refused(where, "retryStrategy.expression",
                          "Tries are not chosen by an expression; let the step complete and use "
                          "a condition.")  # fmt: skip
        elif name == "affinity":
            table.left_out(where, "retryStrategy.affinity", "Each try is placed anew anyway.")
        elif name == "retryPolicy":
            if each not in ("Always", "OnFailure", "OnError", "OnTransientError"):
                raise Malformed(where, f"{shown(each)} is no retry policy.")
            if each in ("OnError", "OnTransientError"):
                table.left_out(where, "retryPolicy", "A failed try is tried again for any reason.")
        else:
            table.refused(where, name, "This field is not known to the import.")
    step["retry"] = part
    table.mapped(place, "retryStrategy", "retry")


def _add_backoff(found: Mapping[str, Any], part: dict[str, Any], place: str) -> None:
    for theirs, ours in (("duration", "delay_seconds"), ("cap", "max_delay_seconds"),
                         ("maxDuration", "max_delay_seconds")):  # fmt: skip
        if found.get(theirs) is not None:
            seconds = find_seconds(found[theirs])
            if seconds is None:
                raise Malformed(f"{place}.{theirs}", f"{shown(found[theirs])} is no duration.")
            part[ours] = min(seconds, 86_400.0)
    if found.get("factor") is not None:
        try:
            factor = float(str(found["factor"]))
        except ValueError:
            raise Malformed(f"{place}.factor", "A number should stand here.") from None
        part["factor"] = min(max(factor, 1.0), 10.0) if factor == factor else 1.0


def _add_cache(value: Any, step: dict[str, Any], place: str, table: Table) -> None:
    found = mapping(value, place)
    step["cache"] = {"enabled": True}
    if found.get("maxAge"):
        seconds = find_seconds(found["maxAge"])
        if seconds is None:
            raise Malformed(f"{place}.maxAge", f"{shown(found['maxAge'])} is no duration.")
        step["cache"]["keep_seconds"] = max(int(seconds), 1)
    table.mapped(place, "memoize", "cache, by the whole input of the step rather than by the key")
