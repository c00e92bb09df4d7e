"""What a job would cost where it would run, and where it would be cheaper."""

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
class Estimate:
    """What a job would cost; amounts are None where no price or no duration is known."""

    hourly_micro: int | None
    estimated_micro: int | None
    max_micro: int | None
    currency: str
    notes: tuple[str, ...]
    cheaper: tuple[Alternative, ...]


def estimate(session: ReadSession, submission: Submission, outlook: Outlook, now: int) -> Estimate:
    """Return what a submission would cost where it would run, at the prices of now."""
    spec = submission.spec
    book = billing.load_book(session)
    usable = [
        each
        for each in clusters.list_usable(session, submission.tenant_id)
        if each.state is ClusterState.AVAILABLE
    ]
    chosen = next((each for each in usable if each.id == outlook.cluster_id), None)
    model = outlook.gpu_model or _model_on(spec, chosen)
    hour = _cost(book, spec, chosen, model, HOUR_MS, now)
    currency = next(iter(sorted(hour.totals)), "USD")
    notes = tuple(f"No price is known for {item}, so it counts as free." for item in hour.unpriced)
    is_known = _is_priced(spec, hour)
    learned = None if outlook.prediction is None else outlook.prediction.learned
    lasts_s = expected_s(spec.estimated_duration_s, learned, spec.max_duration_s)
    if lasts_s is None:
        notes = (*notes, "Without estimated_duration_seconds the cost is told by the hour only.")
    hourly = hour.total_micro(currency) if is_known else None
    cheaper: tuple[Alternative, ...] = ()
    if chosen is not None and hourly is not None:
        cheaper = _cheaper(book, spec, chosen, model, usable, hourly, currency, now)
    return Estimate(
        hourly_micro=hourly,
        estimated_micro=_for(book, spec, chosen, model, lasts_s, currency, now)
        if is_known
        else None,
        max_micro=_for(book, spec, chosen, model, spec.max_duration_s, currency, now)
        if is_known
        else None,
        currency=currency,
        notes=notes,
        cheaper=cheaper,
    )


def estimate_at_submit(
    lookups: Lookups, spec: JobSpec, cluster: Cluster | None, now: int
) -> tuple[int | None, str] | None:
    """Return (micro-units, currency) a job is expected to cost, or None where that is not known.

    Without a duration the amount is None; the currency, in which a budget is meant, is known.
    """
    duration_s = spec.estimated_duration_s or spec.max_duration_s
    cluster_id = None if cluster is None else cluster.id
    asked = (spec.resources, spec.replicas.count, duration_s, cluster_id, now)
    if asked not in lookups.estimates:
        lookups.estimates[asked] = _estimate_anew(lookups, spec, cluster, duration_s, now)
    return lookups.estimates[asked]


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
