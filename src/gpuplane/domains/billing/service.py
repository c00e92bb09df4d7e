"""Use cases of billing: keep the price book, price what the ledger says was used."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.pricing.book import Price, PriceBook
from gpuplane.core.pricing.cost import (
    CPU_ITEM,
    MEMORY_ITEM,
    Cost,
    CostLine,
    Resource,
    merge_lines,
)
from gpuplane.core.workloads import ResourceRequest
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.billing import repository
from gpuplane.domains.billing.errors import BadPrice
from gpuplane.domains.billing.rules import (
    BadField,
    NewPrice,
    canonical_item,
    compute_estimate,
    find_fault,
    is_followed,
)
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import UsageQuery, UsageRow
from gpuplane.kit.bodies import money_to_text
from gpuplane.kit.ids import new_id

__all__ = ["Cost", "CostLine", "CostRow", "NewPrice", "Price", "PriceBook"]

EVER = 0
"""Since the first instant of the ledger."""
JOB_CHUNK = 1000
"""Jobs priced by one question."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """One group's use with what it costs."""

    usage: UsageRow
    cost: Cost


def load_book(session: ReadSession) -> PriceBook:
    """Return the whole price book; it is small."""
    return PriceBook(repository.list_prices(session))


def list_prices(
    session: ReadSession, cluster_id: ClusterId | None = None, item: str | None = None
) -> tuple[Price, ...]:
    """Return the book's entries with their history.

    Raises:
        BadPrice: If the item is no model, `cpu` or `memory`.
    """
    return repository.list_prices(session, cluster_id, None if item is None else _item(item))


def price_for(
    session: ReadSession, cluster_id: ClusterId | None, item: str, at: int
) -> Price | None:
    """Return the price of a model, `cpu` or `memory` in force at an instant, or None."""
    book = PriceBook(repository.list_prices(session, cluster_id, item))
    return book.find_price(cluster_id, item, at)


def add_price(session: WriteSession, wanted: NewPrice, actor: str, now: int) -> Price:
    """Append a price that holds from an instant on; the past keeps its prices.

    Raises:
        BadPrice: If the item is unknown, a number absurd, or the start lies in the past.
    """
    wanted = replace(wanted, item=_item(wanted.item))
    fault = find_fault(wanted)
    if fault is not None:
        raise _bad(fault)
    if wanted.valid_from is not None and wanted.valid_from < now:
        raise BadPrice(
            "A price cannot begin in the past: what was used then is priced already.",
            field="valid_from",
            fix="Leave it out to begin now, or give a later instant.",
        )
    price = _price(wanted, actor, now)
    repository.insert_prices(session, [price])
    events.record(
        session,
        NewEvent(
            kind="price.added",
            at=now,
            subject_kind="price",
            subject_id=price.id,
            cluster_id=price.cluster_id,
            actor=actor,
            message=f"{price.item} costs {money_to_text(price.price_micro)} {price.currency}"
            " an hour.",
            data={"item": price.item, "valid_from": price.valid_from},
        ),
    )
    return price


def carry_prices(
    session: WriteSession, former: ClusterId, cluster_id: ClusterId, actor: str, now: int
) -> int:
    """Let the prices of a deleted cluster go on for the one of its name; return how many do.

    Those in force now and those to come are written anew from now on; what was used before keeps
    the prices of the cluster that was deleted.
    """
    held: dict[str, Price] = {}
    later: list[Price] = []
    for each in repository.list_prices(session, former):  # by item and start
        if each.cluster_id == former and each.valid_from <= now:
            held[each.item] = each
        elif each.cluster_id == former:
            later.append(each)
    found = [*held.values(), *later]
    repository.insert_prices(
        session,
        [
            replace(each, id=new_id(), cluster_id=cluster_id, created_at=now,
                    created_by=actor[:200], valid_from=max(each.valid_from, now))
            for each in found
        ],
    )  # fmt: skip
    if found:
        said = f"The prices of {', '.join(sorted({each.item for each in found}))} on the deleted"
        events.record(
            session,
            NewEvent(
                kind="price.carried_over",
                at=now,
                subject_kind="cluster",
                subject_id=cluster_id,
                cluster_id=cluster_id,
                actor=actor,
                message=f"{said} cluster of this name go on here.",
                data={"from_cluster_id": str(former)},
            ),
        )
    return len(found)


def ensure_prices(session: WriteSession, wanted: Sequence[NewPrice], actor: str, now: int) -> int:
    """Write those prices that differ from what is in force, and return how many. Idempotent."""
    book = load_book(session)
    new = []
    for each in wanted:
        named = replace(each, item=_item(each.item))
        if is_followed(named, book.find_price(named.cluster_id, named.item, now)):
            new.append(_price(named, actor, now))
    repository.insert_prices(session, new)
    return len(new)


def estimate_cost(
    book: PriceBook,
    resources: ResourceRequest,
    replicas: int,
    duration_ms: int,
    cluster_id: ClusterId | None,
    model: str | None,
    at: int,
) -> Cost:
    """Return what a request would cost on a cluster and model at the prices of an instant."""
    return compute_estimate(resources, replicas, duration_ms, book, cluster_id, model, at)


def actual_costs(session: ReadSession, job_ids: Sequence[JobId], now: int) -> dict[JobId, Cost]:
    """Return what jobs have cost until now, by the ledger, each at the prices of its time.

    What is held is paid for, busy or not. A job without any use costs nothing: no lines.
    """
    costs: dict[JobId, Cost] = dict.fromkeys(job_ids, Cost())
    by_name = {str(job_id): job_id for job_id in job_ids}
    for start in range(0, len(job_ids), JOB_CHUNK):
        chunk = tuple(job_ids[start : start + JOB_CHUNK])
        query = UsageQuery(EVER, now, ("job",), job_ids=chunk)
        for row in sum_costs(session, query, now):
            name = row.usage.keys["job"]
            if name is not None:
                costs[by_name[name]] = row.cost
    return costs


def sum_costs(session: ReadSession, query: UsageQuery, now: int) -> tuple[CostRow, ...]:
    """Return what was used by group and what it costs, at the prices that held at the time.

    One line for each item and price, rounded once.
    """
    book = load_book(session)
    end = min(query.to_at, now)
    if end <= query.from_at:
        return ()
    finer = (
        *query.group_by,
        *(name for name in ("cluster", "model") if name not in query.group_by),
    )
    rows: dict[tuple[object, ...], UsageRow] = {}
    lines: dict[tuple[object, ...], list[CostLine]] = {}
    for low, high in book.epochs(query.from_at, end):
        part = replace(query, from_at=low, to_at=high, group_by=finer)
        for row in usage.sum_usage(session, part, now):
            keys = {name: row.keys[name] for name in query.group_by}
            key = (row.simulated, *keys.values())
            rows[key] = _sum(rows.get(key, UsageRow(keys, row.simulated)), row)
            lines.setdefault(key, []).extend(_lines(book, row, low))
    return tuple(CostRow(row, Cost(merge_lines(lines[key]))) for key, row in rows.items())


def on_cluster(query: UsageQuery, cluster_id: ClusterId | None) -> UsageQuery:
    """Return the same question about one cluster, or about all."""
    return replace(query, cluster_id=cluster_id)


def sum_totals(rows: Sequence[CostRow]) -> dict[str, int]:
    """Return the cost of several rows in micro-units by currency."""
    totals: dict[str, int] = {}
    for row in rows:
        for currency, micro in row.cost.totals.items():
            totals[currency] = totals.get(currency, 0) + micro
    return totals


def _lines(book: PriceBook, row: UsageRow, at: int) -> list[CostLine]:
    """Return a line for each thing of a row that is charged, at the prices of an instant."""
    name = row.keys["cluster"]
    cluster_id = None if name is None else ClusterId(UUID(name))
    used = (
        (Resource.GPU, row.keys["model"] or "", row.gpu_billable),
        (Resource.CPU, CPU_ITEM, row.cpu),
        (Resource.MEMORY, MEMORY_ITEM, row.memory),
    )
    return [
        book.line(cluster_id, resource, item, quantity, at)
        for resource, item, quantity in used
        if quantity
    ]


def _sum(left: UsageRow, right: UsageRow) -> UsageRow:
    """Return the use of two rows together, under the keys of the first."""
    return replace(
        left,
        gpu_busy=left.gpu_busy + right.gpu_busy,
        gpu_idle=left.gpu_idle + right.gpu_idle,
        gpu_reserved=left.gpu_reserved + right.gpu_reserved,
        gpu_reserved_billable=left.gpu_reserved_billable + right.gpu_reserved_billable,
        cpu=left.cpu + right.cpu,
        memory=left.memory + right.memory,
    )


def _item(name: str) -> str:
    item = canonical_item(name)
    if isinstance(item, BadField):
        raise _bad(item)
    return item


def _bad(fault: BadField) -> BadPrice:
    return BadPrice(fault.sentence, field=fault.field, fix=fault.fix)


def _price(wanted: NewPrice, actor: str, now: int) -> Price:
    start = now if wanted.valid_from is None else wanted.valid_from
    return Price(
        new_id(),
        wanted.cluster_id,
        wanted.item,
        wanted.currency,
        wanted.price_micro,
        start,
        now,
        actor[:200],
    )
