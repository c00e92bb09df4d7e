"""Which services get a Route, and what its router says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptPlan, BackendError
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.routes import address_of
from gpuplane.backends.kubernetes.manifests.workloads import compute_workload
from gpuplane.backends.kubernetes.served import NO_ROUTES, Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType
from tests.contract.builders import a_plan

OPENSHIFT, PLAIN = Served(no_routes=""), Served()


def a_service(labels: dict[str, str], job_type: JobType = JobType.SERVICE) -> AttemptPlan:
    """Return the plan of a job with these labels."""
    spec = JobSpec("web", job_type, DeploymentType.DOCKER, labels=labels)
    return replace(a_plan(job_type=job_type), spec=spec)


def routes(plan: AttemptPlan, served: Served, expose: str = "asked") -> list[dict[str, Any]]:
    """Return the Routes among the objects of a plan."""
    settings = KubernetesSettings(default_image="img:1", expose=expose)
    workload = compute_workload(plan, settings, "c1", (), served)
    return [dict(each) for each in workload.owned if each["kind"] == "Route"]


def test_a_service_that_asks_for_it_has_a_route_to_its_service_with_our_labels() -> None:
    plan = a_service({"expose": "true"})
    [route] = routes(plan, OPENSHIFT)
    assert route["spec"]["to"]["name"] == route["metadata"]["name"]
    assert route["metadata"]["namespace"] == "tenant-default"
    assert route["metadata"]["labels"][names.CLUSTER] == "c1"
    assert route["spec"]["tls"]["termination"] == "edge"


def test_the_config_of_a_cluster_gives_all_services_a_route_or_none() -> None:
    assert routes(a_service({}), OPENSHIFT) == []
    assert len(routes(a_service({}), OPENSHIFT, "all")) == 1
    assert routes(a_service({}), OPENSHIFT, "none") == []
    assert routes(a_service({}), PLAIN, "all") == []


@pytest.mark.parametrize(
    ("plan", "served", "expose", "reason"),
    [
        (a_service({"expose": "true"}), PLAIN, "asked", NO_ROUTES),
        (a_service({"expose": "true"}), OPENSHIFT, "none", "expose: none"),
        (a_service({"expose": "true"}, JobType.BATCH), OPENSHIFT, "asked", "only a service"),
    ],
)
def test_what_cannot_be_had_is_refused_for_good_by_label_reason_and_fix(
    plan: AttemptPlan, served: Served, expose: str, reason: str
) -> None:
    with pytest.raises(BackendError, match=r"^labels\.expose: .*\. (Take the label off)") as caught:
        routes(plan, served, expose)
    assert caught.value.word == Word.START_REFUSED
    assert reason in caught.value.message


def said(status: str, **more: str) -> dict[str, Any]:
    """Return a Route of which its router says this."""
    condition = {"type": "Admitted", "status": status, **more}
    ingress = {"host": "web.apps.example", "routerName": "default", "conditions": [condition]}
    return {"metadata": {}, "status": {"ingress": [ingress]}}


def test_its_address_is_told_once_its_router_admits_it_and_a_refusal_by_name() -> None:
    assert address_of({"metadata": {}}) == ("", "")
    assert address_of(said("True")) == ("https://web.apps.example", "")
    refused = said("False", reason="HostAlreadyClaimed", message="route a/b has the host")
    assert address_of(refused) == (
        "",
        "HostAlreadyClaimed: the Route is refused by default: route a/b has the host",
    )
