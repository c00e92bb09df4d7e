"""What a job would cost where it would run, and where it would be cheaper."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.prediction.durations import expected_s
from gpuplane.core.pricing.book import PriceBook
from gpuplane.core.workloads import JobSpec
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.service import Cost
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.jobs.service.asking import Outlook
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.queues import service as queues

HOUR_MS = 3_600_000
MAX_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Alternative:
    """The same job for less money: on another model or cluster."""

    sentence: str
    cluster: str
    gpu_model: str | None
    cost_micro: int
    saving_micro: int


@dataclass(frozen=True, slots=True)
class PlaceCost:
    """What a job would cost on one cluster; amounts are None where no price or duration is known.

    Args:
        unpriced: What has no price there and is counted as free.
    """

    cluster: str
    hourly_micro: int | None
    estimated_micro: int | None
    max_micro: int | None
    currency: str
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job would cost; amounts are None where no price or no duration is known.

    Args:
        by_worker: Where the queue dispatches, what it costs on each cluster that may run it, best
            first; the amounts of the whole are None then, unless they are the same on all.
    """

    hourly_micro: int | None
    estimated_micro: int | None
    max_micro: int | None
    currency: str
    notes: tuple[str, ...]
    cheaper: tuple[Alternative, ...]
    by_worker: tuple[PlaceCost, ...] = ()


def estimate(session: ReadSession, submission: Submission, outlook: Outlook, now: int) -> Estimate:
    """Return what a submission would cost where it would run, at the prices of now."""
    spec = submission.spec
    book = billing.load_book(session)
    learned = None if outlook.prediction is None else outlook.prediction.learned
    lasts_s = expected_s(spec.estimated_duration_s, learned, spec.max_duration_s)
    notes: tuple[str, ...] = ()
    if lasts_s is None:
        notes = ("Without estimated_duration_seconds the cost is told by the hour only.",)
    if outlook.workers:
        places = _clusters_named(clusters.list_clusters(session), outlook.workers)
        return _of_workers([_on(book, spec, each, None, lasts_s, now) for each in places], notes)
    usable = [
        each
        for each in clusters.list_usable(session, submission.tenant_id)
        if each.state is ClusterState.AVAILABLE
    ]
    chosen = next((each for each in usable if each.id == outlook.cluster_id), None)
    model = outlook.gpu_model or _model_on(spec, chosen)
    cost = _on(book, spec, chosen, model, lasts_s, now)
    free = tuple(f"No price is known for {item}, so it counts as free." for item in cost.unpriced)
    cheaper: tuple[Alternative, ...] = ()
    if chosen is not None and cost.hourly_micro is not None:
        cheaper = _cheaper(book, spec, chosen, model, usable, cost.hourly_micro, cost.currency, now)
    return Estimate(
        cost.hourly_micro, cost.estimated_micro, cost.max_micro, cost.currency,
        (*free, *notes), cheaper,
    )  # fmt: skip


def _of_workers(costs: Sequence[PlaceCost], notes: tuple[str, ...]) -> Estimate:
    """Return what is known of the cost where one of several clusters will run a job."""
    free = tuple(
        f"On {each.cluster} no price is known for {item}, so it counts as free."
        for each in costs
        for item in each.unpriced
    )
    amounts = {(c.hourly_micro, c.estimated_micro, c.max_micro, c.currency) for c in costs}
    same = next(iter(amounts)) if len(amounts) == 1 else (None, None, None, costs[0].currency)
    return Estimate(*same, notes=(*free, *notes), cheaper=(), by_worker=tuple(costs))


def _clusters_named(known: Iterable[Cluster], names: Iterable[str]) -> list[Cluster]:
    """Return clusters in the order of their names."""
    found = {each.name: each for each in known}
    return [found[name] for name in names if name in found]


def _on(
    book: PriceBook,
    spec: JobSpec,
    cluster: Cluster | None,
    model: str | None,
    lasts_s: int | None,
    now: int,
) -> PlaceCost:
    """Return what a job would cost on a cluster, on a model of it or the one it would get."""
    model = model or _model_on(spec, cluster)
    hour = _cost(book, spec, cluster, model, HOUR_MS, now)
    currency = next(iter(sorted(hour.totals)), "USD")
    name = "" if cluster is None else cluster.name
    if not _is_priced(spec, hour):
        return PlaceCost(name, None, None, None, currency, tuple(hour.unpriced))
    return PlaceCost(
        name,
        hour.total_micro(currency),
        _for(book, spec, cluster, model, lasts_s, currency, now),
        _for(book, spec, cluster, model, spec.max_duration_s, currency, now),
        currency,
        tuple(hour.unpriced),
    )


def estimate_at_submit(
    lookups: Lookups, submission: Submission, cluster: Cluster | None, now: int
) -> tuple[int | None, str] | None:
    """Return (micro-units, currency) a job is expected to cost, or None where that is not known.

    Without a duration the amount is None; the currency, in which a budget is meant, is known. Where
    its queue dispatches, one of several clusters runs it: the amount is None if they differ.
    """
    spec = submission.spec
    duration_s = spec.estimated_duration_s or spec.max_duration_s
    told: set[tuple[int | None, str] | None] = set()
    for place in _places_of(lookups, submission, cluster):
        cluster_id = None if place is None else place.id
        asked = (spec.resources, spec.replicas.count, duration_s, cluster_id, now)
        if asked not in lookups.estimates:
            lookups.estimates[asked] = _estimate_anew(lookups, spec, place, duration_s, now)
        told.add(lookups.estimates[asked])
    if len(told) == 1:
        return next(iter(told))
    currencies = {each[1] for each in told if each is not None}
    return (None, next(iter(currencies))) if len(currencies) == 1 else None


def _places_of(
    lookups: Lookups, submission: Submission, cluster: Cluster | None
) -> Sequence[Cluster | None]:
    """Return where a job that names a cluster may run: there, or where its queue dispatches to."""
    dispatching = frozenset() if cluster is None else queues.dispatching_queues(cluster)
    if cluster is None or not dispatching:
        return (cluster,)
    spec = submission.spec
    door = queues.choose_door(
        lookups.queues_of(cluster.id), lookups.tenant_name(submission.tenant_id),
        str(spec.job_type), spec.queue, spec.priority,
    )  # fmt: skip
    if door is None or door.cluster_queue not in dispatching:
        return (cluster,)
    workers = _clusters_named(lookups.clusters, queues.dispatch_workers(cluster))
    return [each for each in workers if _has_what_is_asked(spec, each)] or (None,)


def _estimate_anew(
    lookups: Lookups, spec: JobSpec, cluster: Cluster | None, duration_s: int | None, now: int
) -> tuple[int | None, str] | None:
    model = _model_on(spec, cluster)
    if cluster is None or (model is None and spec.resources.gpu_count):
        return None
    lasts_ms = HOUR_MS if duration_s is None else duration_s * 1000
    cost = _cost(lookups.prices, spec, cluster, model, lasts_ms, now)
    if not _is_priced(spec, cost) or len(cost.totals) != 1:
        return None
    currency, micro = next(iter(cost.totals.items()))
    return None if duration_s is None else micro, currency


def _is_priced(spec: JobSpec, cost: Cost) -> bool:
    """Return whether everything that matters has a price: its GPUs, or anything without them."""
    if spec.resources.gpu_count:
        return set(cost.unpriced) <= {"cpu", "memory"} and bool(cost.totals)
    return bool(cost.totals)


def _cheaper(
    book: PriceBook,
    spec: JobSpec,
    chosen: Cluster,
    model: str | None,
    usable: list[Cluster],
    hourly: int,
    currency: str,
    now: int,
) -> tuple[Alternative, ...]:
    """Return what would cost less an hour: other models there, and other clusters of its kind."""
    found: list[Alternative] = []
    for cluster in usable:
        if cluster.simulated is not chosen.simulated:
            continue
        for other in _models_on(spec, cluster):
            if (cluster.id, other) == (chosen.id, model):
                continue
            cost = _cost(book, spec, cluster, other, HOUR_MS, now)
            price = cost.total_micro(currency)
            if not _is_priced(spec, cost) or price >= hourly or set(cost.totals) - {currency}:
                continue
            what = other or "no GPU"
            saving = round(100 * (hourly - price) / hourly)
            found.append(
                Alternative(
                    f"On {what} of {cluster.name} an hour costs {saving} % less; it may run "
                    "longer there.",
                    cluster.name,
                    other,
                    price,
                    hourly - price,
                )
            )
    found.sort(key=lambda each: (each.cost_micro, each.cluster, each.gpu_model or ""))
    return tuple(found[:MAX_ALTERNATIVES])


def _models_on(spec: JobSpec, cluster: Cluster) -> list[str | None]:
    """Return the models of a cluster that could hold one replica, or None for no GPU at all."""
    asked = spec.resources
    if asked.gpu_count == 0:
        return [None]
    return [
        model
        for model, (most, total) in sorted(cluster.gpu_shapes.items())
        if most >= asked.gpu_count and total >= asked.gpu_count * spec.replicas.count
    ]


def _has_what_is_asked(spec: JobSpec, cluster: Cluster) -> bool:
    """Return whether a cluster has enough of a model that a job names, or of any."""
    asked = spec.resources.gpu_model
    named = None if asked is None else asked.split("|")
    found = _models_on(spec, cluster)
    return any(model is None or named is None or model in named for model in found)


def _model_on(spec: JobSpec, cluster: Cluster | None) -> str | None:
    """Return the model asked for, or the only one of a cluster."""
    if spec.resources.gpu_model is not None or cluster is None:
        return spec.resources.gpu_model
    if spec.resources.gpu_count == 0:
        return None
    models = list(cluster.gpu_shapes)
    return models[0] if len(models) == 1 else None


def _for(
    book: PriceBook,
    spec: JobSpec,
    cluster: Cluster | None,
    model: str | None,
    duration_s: int | None,
    currency: str,
    now: int,
) -> int | None:
    if duration_s is None:
        return None
    return _cost(book, spec, cluster, model, duration_s * 1000, now).total_micro(currency)


def _cost(
    book: PriceBook,
    spec: JobSpec,
    cluster: Cluster | None,
    model: str | None,
    duration_ms: int,
    now: int,
) -> Cost:
    cluster_id = None if cluster is None else cluster.id
    return billing.estimate_cost(
        book, spec.resources, spec.replicas.count, duration_ms, cluster_id, model, now
    )
