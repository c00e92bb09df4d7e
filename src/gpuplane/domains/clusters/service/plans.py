"""The runs of a cluster's life: which steps, in which order, tried how often."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any
from uuid import UUID

import yaml

from gpuplane.core.runs.plans import Limit, OnFailure, Retry, RunPlan, StepPlan
from gpuplane.domains.clusters.errors import BadAddon
from gpuplane.domains.clusters.rules import ADDONS, NOT_ASKED_FOR, AddonStatus, Cluster

REGISTER = "cluster.register"
DELETE = "cluster.delete"
ADOPT = "cluster.adopt"

_CONNECT = Retry(attempts=4, delay_ms=30_000, factor=2.0, max_delay_ms=120_000)
"""The first try and three more, 30 s apart and twice as long each (11.2)."""
_HELM = Retry(attempts=3, delay_ms=60_000, factor=1.0, max_delay_ms=60_000)
"""The first try and two more, 60 s apart (11.2)."""
_STORE = Retry(attempts=5, delay_ms=1_000)
STEP_MS = 60_000
HELM_MS = 900_000
"""A GPU operator takes minutes to unroll; Helm is told to wait a little less."""
DRAIN_MS = 7 * 86_400_000

REGISTER_STEPS: tuple[tuple[str, str, Retry, int], ...] = (
    ("verify_connection", "Verify the connection, the version and the rights", _CONNECT, STEP_MS),
    ("deploy_nfd", "Node Feature Discovery", _HELM, HELM_MS),
    ("collect_node_info", "Read and store the nodes", _STORE, 4 * STEP_MS),
    ("deploy_gpu_operator", "GPU operator", _HELM, HELM_MS),
    ("deploy_hami", "HAMi", _HELM, HELM_MS),
    ("deploy_prometheus", "Prometheus with the DCGM exporter", _HELM, HELM_MS),
    ("deploy_aibrix", "AIBrix", _HELM, HELM_MS),
    ("deploy_kueue", "Kueue", _HELM, HELM_MS),
    ("create_default_queues", "Default flavors and queues from the GPUs found", _STORE, STEP_MS),
    ("join_multikueue", "MultiKueue: managers dispatch to it", _CONNECT, 4 * STEP_MS),
    ("make_available", "Let it take work", _STORE, STEP_MS),
)
"""(key, name, retry, time-out in ms) of the registration: the design document's and 4.3's."""
DELETE_STEPS: tuple[tuple[str, str, Retry, int], ...] = (
    ("drain", "Move or end the work that runs there", _STORE, DRAIN_MS),
    ("release", "Remove what is ours in the cluster", _CONNECT, 5 * STEP_MS),
    ("leave_managers", "MultiKueue: no work comes to it or leaves it", _STORE, 10 * STEP_MS),
    ("forget", "Delete credentials, keys and inventory", _STORE, STEP_MS),
)


ADOPT_STEPS: tuple[tuple[str, str, Retry, int], ...] = (
    ("adopt", "Take over what is installed already", _HELM, HELM_MS),
)


@lru_cache(maxsize=1)
def list_known_addons() -> tuple[str, ...]:
    """Return the names of the add-ons that a registration may bring in, by name."""
    text = files("gpuplane").joinpath("data", "addons.yaml").read_text(encoding="utf-8")
    return tuple(sorted(each["name"] for each in yaml.safe_load(text)["addons"]))


def require_addons(names: Sequence[str] | None) -> None:
    """Refuse names of add-ons that there are none of.

    Raises:
        BadAddon: Naming those that there are.
    """
    for name in names or ():
        if name not in list_known_addons():
            raise BadAddon(
                f"There is no add-on {name!r}.",
                field="addons",
                fix=f"There are: {', '.join(list_known_addons())}.",
            )


def choose_addons(
    cluster: Cluster, statuses: Sequence[AddonStatus], named: Sequence[str] | None
) -> list[str] | None:
    """Return the add-ons of a registration that is run once more; None for all that fit.

    Args:
        cluster: With what was asked for last.
        statuses: What became of each add-on; what is ours stays up to date.
        named: What is asked for now; None where nothing is said.
    """
    if named is not None:
        return sorted(set(named))
    asked = cluster.addons_asked
    if asked is None:
        if ADDONS in cluster.config:
            return None
        # Registered before it was kept: what was left out for that reason tells.
        left_out = {each.name for each in statuses if each.message == NOT_ASKED_FOR}
        if not left_out:
            return None
        asked = [each for each in list_known_addons() if each not in left_out]
    ours = {each.name for each in statuses if each.state in ("installed", "adopted")}
    return sorted({*asked, *ours})


def plan_registration(
    cluster_id: UUID,
    name: str,
    *,
    tenant_id: UUID,
    project_id: UUID,
    actor: str,
    addons: Sequence[str] | None,
    traceparent: str | None = None,
) -> RunPlan:
    """Return the run that registers a cluster.

    Args:
        addons: Names of the add-ons that may be installed; None for all that fit.
    """
    given: dict[str, Any] = {"cluster_id": str(cluster_id)}
    if addons is not None:
        given["addons"] = sorted(addons)
    return RunPlan(
        kind=REGISTER,
        name=f"register {name}",
        tenant_id=tenant_id,
        project_id=project_id,
        steps=_chain(REGISTER_STEPS, given),
        source_id=cluster_id,
        on_failure=OnFailure.FAIL_FAST,
        limits=_one_at_a_time(cluster_id),
        traceparent=traceparent,
        created_by=actor,
    )


def plan_deletion(
    cluster_id: UUID,
    name: str,
    *,
    tenant_id: UUID,
    project_id: UUID,
    actor: str,
    force: bool,
    wait_s: int,
    keep_cordons: bool = False,
) -> RunPlan:
    """Return the run that drains and deletes a cluster.

    Args:
        force: End what runs there, and forget the cluster even if it does not answer.
        wait_s: How long BATCH work may go on and training has for its checkpoint.
        keep_cordons: Leave Nodes cordoned that were cordoned here.
    """
    given = {
        "cluster_id": str(cluster_id),
        "force": force,
        "wait_s": wait_s,
        "keep_cordons": keep_cordons,
    }
    return RunPlan(
        kind=DELETE,
        name=f"delete {name}",
        tenant_id=tenant_id,
        project_id=project_id,
        steps=_chain(DELETE_STEPS, given),
        source_id=cluster_id,
        on_failure=OnFailure.FAIL_FAST,
        created_by=actor,
    )


def plan_adoption(
    cluster_id: UUID, name: str, addon: str, *, tenant_id: UUID, project_id: UUID, actor: str
) -> RunPlan:
    """Return the run that takes over an add-on which somebody else installed."""
    given = {"cluster_id": str(cluster_id), "addon": addon}
    return RunPlan(
        kind=ADOPT,
        name=f"adopt {addon} on {name}",
        tenant_id=tenant_id,
        project_id=project_id,
        steps=_chain(ADOPT_STEPS, given),
        source_id=cluster_id,
        limits=_one_at_a_time(cluster_id),
        created_by=actor,
    )


def _one_at_a_time(cluster_id: UUID) -> tuple[Limit, ...]:
    """Return the limit by which runs that install something in a cluster wait for one another."""
    return (Limit(f"cluster:{cluster_id}", 1),)


def handler_name(step: str) -> str:
    """Return the name under which a step's handler is registered."""
    return f"clusters.{step}"


def _chain(
    steps: Sequence[tuple[str, str, Retry, int]], given: dict[str, Any]
) -> tuple[StepPlan, ...]:
    """Return steps one after the other: each finds what those before left in the cluster."""
    made: list[StepPlan] = []
    for order, (key, name, retry, timeout_ms) in enumerate(steps):
        made.append(
            StepPlan(
                key=key,
                handler=handler_name(key),
                input=given,
                name=name,
                needs=(made[-1].key,) if made else (),
                order=order,
                retry=retry,
                timeout_ms=timeout_ms,
            )
        )
    return tuple(made)
