"""The backlog of `gpuplane demo`: three tenants, their quotas and their jobs. Pure.

The same size makes the same jobs. The first ones show one thing each (a gang, a service, MIG, a
share, a chain, a job that can never start); the rest is a plausible day of small work.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SEED = 20_240_501
CLUSTER = "demo"
LABEL = "gpuplane-demo"
MINUTE = 60


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant of the demo, with the GPUs it owns by model: nominal, and what it may borrow."""

    name: str
    display_name: str
    quota: dict[str, tuple[int, int]]


TENANTS = (
    DemoTenant("demo-vision", "Vision (demo)", {
        "nvidia-h100-80gb": (24, 16), "nvidia-a100-80gb": (12, 8), "nvidia-v100-32gb": (8, 8),
        "nvidia-l4": (6, 4), "nvidia-t4": (4, 4),
    }),
    DemoTenant("demo-language", "Language (demo)", {
        "nvidia-h100-80gb": (32, 32), "nvidia-a100-80gb": (12, 8), "nvidia-v100-32gb": (4, 4),
        "nvidia-l4": (6, 4), "nvidia-t4": (2, 2),
    }),
    DemoTenant("demo-platform", "Platform (demo)", {
        "nvidia-h100-80gb": (8, 8), "nvidia-a100-80gb": (8, 4), "nvidia-v100-32gb": (4, 8),
        "nvidia-l4": (4, 4), "nvidia-t4": (2, 2),
    }),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the backlog.

    Args:
        tenant: Whose it is.
        body: Its body, without tenant and project.
        after: Names of jobs of this backlog that it comes after.
    """

    tenant: str
    body: dict[str, Any]
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.body["name"])


def backlog(size: int, round_number: int = 1) -> list[DemoJob]:
    """Return the jobs of a backlog, in the order of their submits.

    Args:
        size: How many, at least 1.
        round_number: Tells rounds apart, in the names of labels and keys alone.
    """
    jobs = list(_showcase())[:size]
    chance = random.Random(SEED)
    jobs += [_filler(chance, number) for number in range(1, size - len(jobs) + 1)]
    return [_labelled(job, round_number) for job in jobs]


def _labelled(job: DemoJob, round_number: int) -> DemoJob:
    labels = {**job.body.get("labels", {}), LABEL: f"round-{round_number}"}
    key = f"demo-{round_number}-{job.name}"
    return DemoJob(job.tenant, {**job.body, "labels": labels, "idempotency_key": key}, job.after)


def quota_body(tenant: DemoTenant) -> dict[str, Any]:
    """Return the ClusterQueue of a tenant, in Kueue's fields."""
    flavors = [
        {
            "name": model,
            "resources": [
                {"name": "nvidia.com/gpu", "nominalQuota": nominal, "borrowingLimit": borrowing},
            ],
        }
        for model, (nominal, borrowing) in tenant.quota.items()
    ]
    return {
        "cohort": "demo",
        "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}],
        "preemption": {
            "withinClusterQueue": "LowerPriority",
            "reclaimWithinCohort": "LowerPriority",
        },
    }


def _job(tenant: str, name: str, gpus: str, minutes: float, **more: Any) -> DemoJob:
    """Return a job; `gpus` is written `8 H100-80GB`, or `` for none."""
    count, _, model = gpus.partition(" ")
    seconds = round(minutes * MINUTE)
    simulated = {
        "duration_s": float(seconds),
        "startup_s": 2.0,
        "log": more.pop("log", [f"{name}: begins", f"{name}: half-way", f"{name}: done"]),
        **more.pop("simulated", {}),
    }
    run = {"command": [f"./{name}"], "simulated": simulated, **more.pop("run", {})}
    after = tuple(more.pop("after", ()))
    body: dict[str, Any] = {
        "name": name,
        "cluster": CLUSTER,
        "gpu_count": int(count or 0),
        "cpu_cores": float(max(2, 4 * int(count or 0))),
        "memory_gb": float(max(8, 32 * int(count or 0))),
        "resources": {"ephemeral_storage_gb": 20.0, **more.pop("resources", {})},
        "estimated_duration_seconds": seconds,
        "spec": run,
        **more,
    }
    if model:
        body["gpu_type"] = model
    return DemoJob(f"demo-{tenant}", body, after)


def _showcase() -> Iterator[DemoJob]:
    """Yield the jobs that each show one thing."""
    yield from _services()
    yield from _trainings()
    yield from _shares()
    yield from _batches()
    yield from _waiting()


def _services() -> Iterator[DemoJob]:
    service: dict[str, Any] = {"job_type": "service", "priority": "critical"}
    yield _job(
        "language",
        "chat-api",
        "1 L4",
        45,
        replicas={"count": 2, "gang": False},
        run={"port": 0},
        **service,
    )
    yield _job(
        "vision",
        "detector-api",
        "1 T4",
        40,
        replicas={"count": 2, "gang": False},
        run={"port": 0},
        **{**service, "priority": "high"},
    )
    yield _job("platform", "embeddings-api", "1 L4", 45, run={"port": 0}, **service)


def _trainings() -> Iterator[DemoJob]:
    training: dict[str, Any] = {"job_type": "training"}
    checkpoint = {"checkpoint_every_s": 120.0}
    yield _job(
        "language",
        "pretrain-7b",
        "8 H100-80GB",
        14,
        replicas={"count": 4},
        priority="high",
        simulated=checkpoint,
        cost_centre="research",
        **training,
    )
    yield _job(
        "vision",
        "segment-train",
        "8 H100-80GB",
        9,
        replicas={"count": 3},
        simulated=checkpoint,
        **training,
    )
    yield _job(
        "language",
        "finetune-chat",
        "8 A100-80GB",
        11,
        priority="high",
        placement={"topology": {"preference": "nvlink", "required": True}},
        simulated=checkpoint,
        **training,
    )
    yield _job("vision", "pose-train", "4 V100-32GB", 7, replicas={"count": 2}, **training)
    yield _job(
        "platform",
        "ranker-train",
        "4 A100-80GB",
        8,
        budget_limit="2.00",
        budget_action="warn",
        **training,
    )


def _shares() -> Iterator[DemoJob]:
    for number in range(1, 6):
        yield _job(
            "platform",
            f"notebook-{number}",
            "",
            18 + number,
            gpu_type="A100-80GB",
            resources={"mig_profile": "1g.10gb"},
            job_type="service",
        )
    for number in range(1, 3):
        yield _job(
            "vision",
            f"eval-slice-{number}",
            "",
            6 + number,
            gpu_type="A100-80GB",
            resources={"mig_profile": "3g.40gb"},
        )
    for number in range(1, 5):
        yield _job(
            "platform",
            f"tagger-{number}",
            "1 T4",
            5 + number,
            resources={"gpu_share": 0.5},
            priority="low",
        )


def _batches() -> Iterator[DemoJob]:
    yield _job("vision", "prepare-data", "", 2)
    yield _job("vision", "train-on-it", "2 L4", 4, after=["prepare-data"])
    yield _job("vision", "evaluate-it", "1 L4", 2, after=["train-on-it"])
    yield _job("vision", "sweep", "1 V100-32GB", 3, array={"size": 8, "limit": 3}, priority="spot")
    yield _job(
        "language",
        "flaky-import",
        "",
        1,
        max_retries=2,
        retry={"delay_seconds": 20},
        simulated={"exit_code": 3},
        log=["reading shard 7", "shard 7 is damaged"],
    )
    yield _job("platform", "transcode", "2 T4", 6, priority="spot")
    yield _job("language", "batch-inference", "4 L4", 6, deadline_action="warn", priority="normal")


def _waiting() -> Iterator[DemoJob]:
    """Yield jobs that wait, each for another reason, for `why` to explain."""
    yield _job(
        "language",
        "pretrain-70b",
        "8 H100-80GB",
        20,
        replicas={"count": 6},
        job_type="training",
        priority="normal",
    )
    yield _job(
        "vision",
        "world-model",
        "8 H100-80GB",
        15,
        replicas={"count": 9},
        job_type="training",
        priority="low",
    )
    yield _job("platform", "needs-much-memory", "1 L4", 5, memory_gb=190.0)
    yield _job(
        "platform",
        "nightly-report",
        "1 T4",
        3,
        window={"start": "02:00", "end": "02:30", "zone": "UTC"},
    )
    yield _job(
        "vision",
        "other-rack",
        "2 A100-80GB",
        4,
        placement={"node_selector": {"gpuplane.io/rack": "rack-z9"}},
    )
    yield _job("language", "urgent-evaluation", "8 H100-80GB", 5, priority="critical")


FILLER = (
    ("1 L4", 0.30), ("1 T4", 0.20), ("1 V100-32GB", 0.15), ("2 A100-80GB", 0.12),
    ("1 H100-80GB", 0.10), ("4 H100-80GB", 0.08), ("8 H100-80GB", 0.05),
)  # fmt: skip
VERBS = ("train", "score", "embed", "index", "render", "align", "distil", "probe")
THINGS = ("cats", "maps", "voices", "tables", "reviews", "frames", "proteins", "logs")


def _filler(chance: random.Random, number: int) -> DemoJob:
    gpus = chance.choices([each for each, _ in FILLER], [weight for _, weight in FILLER])[0]
    tenant = chance.choice(TENANTS).name.removeprefix("demo-")
    name = f"{chance.choice(VERBS)}-{chance.choice(THINGS)}-{number}"
    priority = chance.choices(["high", "normal", "low", "spot"], [1, 6, 3, 2])[0]
    minutes = min(30.0, max(0.5, chance.lognormvariate(1.1, 0.7)))
    ends_badly = chance.random() < 0.05
    simulated = {"exit_code": 1} if ends_badly else {}
    return _job(tenant, name, gpus, round(minutes, 2), priority=priority, simulated=simulated,
                max_retries=0 if ends_badly else 3)  # fmt: skip
