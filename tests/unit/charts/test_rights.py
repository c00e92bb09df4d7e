"""Every call to a cluster's API server is in a table of rights, and the charts grant the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuplane.extender.rights import RIGHTS as EXTENDER_RIGHTS
from gpuplane.kube import kinds, preflight
from gpuplane.kube.kinds import Kind
from gpuplane.kube.rights import Right, list_granted, list_needed
from gpuplane.operator.migs import MIG_LAYOUT
from gpuplane.operator.rights import RIGHTS as OPERATOR_RIGHTS
from tests.calls import list_calls
from tools import make_cluster_access

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "gpuplane"
CONTROL_PLANE = ("backends/kubernetes", "domains", "loops")
NAMED = {name: value for name, value in vars(kinds).items() if isinstance(value, Kind)}


def called(package: str, known: dict[str, Kind]) -> set[tuple[str, str, str]]:
    """Return (API group, plural, verb) of each call of a package whose kind can be read."""
    return {
        (known[call.kind].group, known[call.kind].plural, call.verb)
        for call in list_calls(SOURCE / package)
        if call.kind in known
    }


def told(rights: tuple[Right, ...]) -> set[tuple[str, str, str]]:
    return {
        (group, resource.split("/")[0], verb) for group, resource, verb, _ in list_needed(rights)
    }


@pytest.mark.parametrize(
    ("package", "rights", "more"),
    [
        ("operator", OPERATOR_RIGHTS, {"MIG_LAYOUT": MIG_LAYOUT}),
        ("extender", EXTENDER_RIGHTS, {}),
    ],
)
def test_a_role_calls_what_its_table_says_and_all_that_it_says(
    package: str, rights: tuple[Right, ...], more: dict[str, Kind]
) -> None:
    found = called(package, {**NAMED, **more})
    # What is made or replaced names its kind in the object: those are tried on a real API server
    # with an account that has these rights alone.
    readable = {each for each in told(rights) if each[2] not in ("create", "update")}
    assert found == readable


def test_the_control_plane_calls_only_what_registration_checks() -> None:
    checked = {
        (right.kind.group, right.kind.plural, verb)
        for right in (*preflight.RIGHTS, *preflight.KUEUE_RIGHTS, *preflight.OPENSHIFT_RIGHTS)
        for verb in right.verbs
    }
    found = set().union(*(called(package, NAMED) for package in CONTROL_PLANE))
    assert found
    assert found - checked == set()


def test_the_rules_of_the_access_account_are_those_that_registration_checks() -> None:
    text = (ROOT / make_cluster_access.PAGE).read_text(encoding="utf-8")
    assert text == make_cluster_access.render(), "run `python -m tools.make_cluster_access`"
    rules = yaml.safe_load(text)
    granted = {(group, resource, verb) for group, resource, verb, _ in list_granted(rules)}
    for right in (*preflight.RIGHTS, *preflight.KUEUE_RIGHTS, *preflight.OPENSHIFT_RIGHTS):
        part = f"/{right.subresource}" if right.subresource else ""
        for verb in right.verbs:
            assert (right.kind.group, f"{right.kind.plural}{part}", verb) in granted


def test_no_account_that_is_made_may_take_rights_that_it_was_not_given() -> None:
    granted = yaml.safe_load((ROOT / make_cluster_access.PAGE).read_text(encoding="utf-8"))
    for rule in granted:
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])
    asked = {right.resource for right in preflight.ADDON_RIGHTS}
    assert "clusterrolebindings.rbac.authorization.k8s.io" in asked


def test_no_rule_of_a_table_is_a_wildcard() -> None:
    for rights in (OPERATOR_RIGHTS, EXTENDER_RIGHTS):
        for group, resource, verb, _ in list_needed(rights):
            assert "*" not in f"{group}{resource}{verb}"
            assert resource != "secrets"
