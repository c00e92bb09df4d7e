"""The runs of a cluster's life: which steps in which order, tried how often."""

from __future__ import annotations

from uuid import UUID

from gpuplane.core.runs.boards import Rules
from gpuplane.core.runs.checking import find_plan_faults
from gpuplane.domains.clusters.service import plan_adoption, plan_deletion, plan_registration

CLUSTER, TENANT, PROJECT = UUID(int=1), UUID(int=2), UUID(int=3)


def test_a_registration_goes_from_connection_to_availability_one_step_after_the_other() -> None:
    plan = plan_registration(
        CLUSTER, "east", tenant_id=TENANT, project_id=PROJECT, actor="ada", addons=None
    )
    keys = [step.key for step in plan.steps]
    assert (keys[0], keys[2], keys[-1]) == (
        "verify_connection", "collect_node_info", "make_available",
    )  # fmt: skip
    assert [step.needs for step in plan.steps] == [(), *((key,) for key in keys[:-1])]
    assert find_plan_faults(plan, Rules()) == []


def test_connections_are_tried_three_times_more_from_30_s_and_helm_twice_more_after_60_s() -> None:
    plan = plan_registration(
        CLUSTER, "east", tenant_id=TENANT, project_id=PROJECT, actor="ada", addons=["nfd"]
    )
    retries = {step.key: step.retry for step in plan.steps}
    connect, helm = retries["verify_connection"], retries["deploy_kueue"]
    assert (connect.attempts, connect.delay_ms, connect.factor) == (4, 30_000, 2.0)
    assert (helm.attempts, helm.delay_ms, helm.factor) == (3, 60_000, 1.0)
    assert plan.steps[0].input == {"cluster_id": str(CLUSTER), "addons": ["nfd"]}


def test_runs_that_install_something_in_one_cluster_wait_for_one_another() -> None:
    one = plan_registration(
        CLUSTER, "east", tenant_id=TENANT, project_id=PROJECT, actor="ada", addons=None
    )
    two = plan_adoption(CLUSTER, "east", "nfd", tenant_id=TENANT, project_id=PROJECT, actor="ada")
    other = plan_adoption(TENANT, "west", "nfd", tenant_id=TENANT, project_id=PROJECT, actor="ada")
    assert one.limits == two.limits != other.limits
    assert one.limits[0].count == 1


def test_a_deletion_drains_before_it_removes_and_forgets() -> None:
    plan = plan_deletion(
        CLUSTER, "east", tenant_id=TENANT, project_id=PROJECT, actor="ada", force=False, wait_s=60
    )
    assert [step.key for step in plan.steps] == [
        "drain",
        "release",
        "leave_managers",
        "forget",
    ]
    assert find_plan_faults(plan, Rules()) == []
