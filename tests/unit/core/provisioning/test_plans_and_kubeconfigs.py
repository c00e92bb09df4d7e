"""What a plan would do, and the kubeconfig made of outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane.core.provisioning.kubeconfigs import NoCredential, kubeconfig_of, with_token
from gpuplane.core.provisioning.plans import Action, UnreadablePlan, summary_of


def plan(*changes: tuple[str, list[str]], outputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "format_version": "1.2",
        "resource_changes": [
            {"address": address, "change": {"actions": actions, "after": {"secret": "s"}}}
            for address, actions in changes
        ],
        "output_changes": outputs or {},
    }


def test_a_plan_is_told_by_counts_and_addresses_alone() -> None:
    found = summary_of(
        plan(
            ("b.new", ["create"]), ("a.old", ["delete"]), ("c.changed", ["update"]),
            ("d.again", ["delete", "create"]), ("e.same", ["no-op"]), ("data.f.x", ["read"]),
        )
    )  # fmt: skip
    assert [(each.address, each.action) for each in found.changes] == [
        ("a.old", Action.DELETE), ("b.new", Action.CREATE),
        ("c.changed", Action.UPDATE), ("d.again", Action.REPLACE),
    ]  # fmt: skip
    assert (found.added, found.changed, found.destroyed) == (2, 1, 2)
    assert "secret" not in repr(found)


def test_a_plan_that_changes_nothing_or_outputs_alone_says_so() -> None:
    assert summary_of(plan(("a.b", ["no-op"]))).is_empty
    assert summary_of(plan(outputs={"o": {"actions": ["no-op"]}})).is_empty
    assert not summary_of(plan(outputs={"o": {"actions": ["update"]}})).is_empty


@pytest.mark.parametrize(
    "document", [{}, {"format_version": "2.0"}, plan(("a.b", ["transmogrify"]))]
)
def test_a_plan_of_another_form_is_refused_rather_than_guessed(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadablePlan):
        summary_of(document)


def test_a_kubeconfig_holds_its_credential_and_runs_nothing() -> None:
    outputs = {"server": "https://k", "certificate_authority_data": "Q0E=", "token": "t-1"}
    found = json.loads(kubeconfig_of("train-eu", outputs))
    assert found["users"] == [{"name": "train-eu", "user": {"token": "t-1"}}]
    assert found["clusters"][0]["cluster"]["server"] == "https://k"
    assert "exec" not in json.dumps(found)


@pytest.mark.parametrize("missing", ["server", "certificate_authority_data", "token"])
def test_outputs_that_do_not_suffice_are_named(missing: str) -> None:
    outputs = {"server": "https://k", "certificate_authority_data": "Q0E=", "token": "t-1"}
    del outputs[missing]
    with pytest.raises(NoCredential, match="credential" if missing == "token" else missing):
        kubeconfig_of("train-eu", outputs)


def test_a_token_that_is_given_takes_the_place_of_every_other_credential() -> None:
    outputs = {
        "server": "https://k", "certificate_authority_data": "Q0E=",
        "client_certificate_data": "c", "client_key_data": "k",
    }  # fmt: skip
    found = json.loads(kubeconfig_of("serve-we", with_token(outputs, "lasting")))
    assert found["users"][0]["user"] == {"token": "lasting"}
