"""The demo's backlog: the same every time, and every job one the server takes."""

from __future__ import annotations

from gpuplane.cli.backlog import CLUSTER, TENANTS, backlog, quota_body
from gpuplane.cli.commands.queue import in_order
from gpuplane.domains.jobs.schemas import JobIn, spec_of
from gpuplane.domains.queues.schemas import QuotaIn


def test_the_same_size_makes_the_same_jobs() -> None:
    assert backlog(120) == backlog(120)
    assert [job.name for job in backlog(200)][:120] == [job.name for job in backlog(120)]


def test_every_job_is_one_that_the_server_takes() -> None:
    for job in backlog(300):
        body = JobIn.model_validate(job.body)
        assert spec_of(body).name == job.name
        assert body.cluster == CLUSTER


def test_names_and_keys_are_unique_and_keys_differ_by_round() -> None:
    first, second = backlog(200, 1), backlog(200, 2)
    assert len({job.name for job in first}) == 200
    keys = {job.body["idempotency_key"] for job in [*first, *second]}
    assert len(keys) == 400


def test_what_a_job_comes_after_stands_before_it() -> None:
    seen: set[str] = set()
    for job in backlog(80):
        assert set(job.after) <= seen
        seen.add(job.name)


def test_every_tenant_has_work_and_a_quota_that_the_server_takes() -> None:
    assert {job.tenant for job in backlog(80)} == {tenant.name for tenant in TENANTS}
    for tenant in TENANTS:
        quota = QuotaIn.model_validate({"name": tenant.name, **quota_body(tenant)})
        assert quota.cohort == "demo"


def test_quotas_together_are_no_more_than_the_fleet_has() -> None:
    fleet = {"nvidia-h100-80gb": 64, "nvidia-a100-80gb": 32, "nvidia-v100-32gb": 16,
             "nvidia-l4": 16, "nvidia-t4": 8}  # fmt: skip
    for model, count in fleet.items():
        assert sum(tenant.quota[model][0] for tenant in TENANTS) <= count


def test_a_place_in_the_queue_follows_class_then_age_for_each_cluster() -> None:
    def waiting(
        name: str, cluster: str, priority: str, at: str, status: str = "queued"
    ) -> dict[str, object]:
        places = {"id": name, "name": name, "cluster": cluster, "priority": priority}
        return {**places, "queued_at": at, "created_at": at, "status": status}

    rows = in_order(
        [
            waiting("late", "a", "normal", "2"),
            waiting("early", "a", "normal", "1"),
            waiting("other", "b", "low", "0"),
            waiting("high", "a", "high", "3"),
            waiting("gated", "a", "critical", "0", "pending"),
        ]
    )
    assert [(row["name"], row["position"]) for row in rows] == [
        ("high", 1), ("early", 2), ("late", 3), ("gated", None), ("other", 1),
    ]  # fmt: skip
