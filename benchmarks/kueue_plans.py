"""What a real Kueue and `core.quota` are given: cohorts, queues and events by chance of a seed.

Owns the plans and the cluster's objects that they are made of. Compares nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from gpuplane.core.quota import (
    GPU,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorResource,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.workloads import PRIORITY_VALUES
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kueue.flavors import priority_class_objects
from gpuplane.kube.kueue.names import UNCOUNTED_FLAVOR, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object, cohort_object

NAMESPACE = "compared"
FLAVORS = ("flavor-a", "flavor-b")
Version = ApiVersion.V1BETA2


@dataclass(frozen=True)
class Plan:
    """One cohort with its queues, and what happens in it, step by step."""

    name: str
    queues: tuple[ClusterQueueSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    steps: tuple[tuple[str, str, str, int], ...]
    """(arrive or end, job, queue, GPUs); the priority's word is in the job's name."""


def make_plan(number: int, arrivals: int, seed: int) -> Plan:
    """Return one cohort: queues, policies and events by chance of a seed."""
    chance = random.Random(f"{seed}/{number}")
    name = f"cohort-{number}"
    flavors = FLAVORS[: chance.choice((1, 1, 2))]
    parents = [name]
    cohorts = [CohortSpec(name)]
    if number % 4 == 3:
        # Two cohorts under one: quotas are lent across.
        parents = [f"{name}-left", f"{name}-right"]
        cohorts += [CohortSpec(each, parent=name) for each in parents]
    queues = tuple(_make_queue(f"{name}-q{i}", parents[i % len(parents)], flavors, chance)
                   for i in range(chance.randint(2, 4)))  # fmt: skip
    steps: list[tuple[str, str, str, int]] = []
    alive: list[str] = []
    for index in range(arrivals):
        word = chance.choice(("critical", "high", "normal", "normal", "low", "spot"))
        job = f"{name}-{word}-{index}"
        queue = chance.choice(queues).name
        steps.append(("arrive", job, queue, chance.choice((1, 1, 2, 2, 3, 4, 6, 8))))
        alive.append(job)
        if len(alive) > 8 and chance.random() < 0.45:
            steps.append(("end", alive.pop(chance.randrange(len(alive))), "", 0))
    return Plan(name, queues, tuple(cohorts), tuple(steps))


def _make_queue(
    name: str, cohort: str, flavors: tuple[str, ...], chance: random.Random
) -> ClusterQueueSpec:
    quotas = {}
    for flavor in flavors:
        nominal = chance.choice((2, 4, 6, 8)) * 1000
        borrowing = chance.choice((None, None, 0, 2000, 4000))
        lending = chance.choice((None, None, 0, nominal // 2))
        quotas[FlavorResource(flavor, GPU)] = ResourceQuota(nominal, borrowing, lending)
    reclaim = chance.choice(list(ReclaimWithinCohort))
    borrow = BorrowWithinCohortPolicy.NEVER
    threshold = None
    if reclaim is not ReclaimWithinCohort.NEVER and chance.random() < 0.4:
        borrow = BorrowWithinCohortPolicy.LOWER_PRIORITY
        threshold = chance.choice((None, 1, 10))
    fungible = list(FlavorFungibilityPolicy)
    return ClusterQueueSpec(
        name,
        cohort=cohort,
        resource_groups=(ResourceGroup((GPU,), flavors),),
        quotas=quotas,
        queueing_strategy=chance.choice(
            (QueueingStrategy.BEST_EFFORT_FIFO,) * 3 + (QueueingStrategy.STRICT_FIFO,)
        ),
        fair_weight_milli=chance.choice((1000, 1000, 2000, 500)),
        preemption=PreemptionPolicy(
            chance.choice(list(WithinClusterQueue)), reclaim, borrow, threshold
        ),
        flavor_fungibility=FlavorFungibility(chance.choice(fungible), chance.choice(fungible)),
    )


def job_object(job: str, queue: str, gpus: int) -> dict[str, Any]:
    """Return a suspended Job that asks Kueue for GPUs and never ends by itself."""
    asked = {GPU: str(gpus)}
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"requests": asked, "limits": asked},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job,
            "namespace": NAMESPACE,
            "labels": {
                "kueue.x-k8s.io/queue-name": queue,
                "kueue.x-k8s.io/priority-class": job.split("-")[-2],
            },
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def priority_of(job: str) -> int:
    """Return the value of a job's priority class, whose word is in its name."""
    return next(v for w, v in PRIORITY_VALUES.items() if w.value == job.split("-")[-2])


async def set_up(client: KubeClient, plans: list[Plan]) -> None:
    """Make flavors, priorities, cohorts, queues and the namespace."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for flavor in (*FLAVORS, UNCOUNTED_FLAVOR):
        await client.create(
            {
                "apiVersion": Version.group_version,
                "kind": "ResourceFlavor",
                "metadata": {"name": flavor},
            }
        )
    for each in priority_class_objects(Version):
        name = each["metadata"]["name"].rpartition("-")[2].lower()
        await client.create({**each, "metadata": {"name": name}})
    for plan in plans:
        for cohort in plan.cohorts:
            await client.create(cohort_object(cohort, Version))
        for queue in plan.queues:
            await client.create(cluster_queue_object(queue, Version))
            await client.create(
                {
                    "apiVersion": Version.group_version,
                    "kind": "LocalQueue",
                    "metadata": {"name": queue.name, "namespace": NAMESPACE},
                    "spec": {"clusterQueue": queue.name},
                },
                NAMESPACE,
            )
