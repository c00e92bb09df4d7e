"""Planned, made, changed and removed by the real binary, with its state sealed in between."""

from __future__ import annotations

import pytest

from gpuplane.core.provisioning.plans import Action
from gpuplane.provisioning.clusters import Provisioner
from gpuplane.provisioning.errors import ProvisioningError, Reason
from tests.integration.provisioning.conftest import Making, files


def made(provisioner: Provisioner, count: int = 2) -> Provisioner:
    saved = provisioner.plan("train", files(count), {"say": count})
    provisioner.apply("train", saved.id)
    return provisioner


def every_byte(provisioner: Provisioner) -> bytes:
    home = provisioner.home / "provisioning"
    return b"".join(each.read_bytes() for each in home.rglob("*") if each.is_file())


def test_a_cluster_is_planned_made_changed_and_removed(making: Making) -> None:
    told: list[str] = []
    provisioner = making(told)
    saved = provisioner.plan("train", files(2), {"say": 2})
    assert (saved.summary.added, saved.summary.changed, saved.summary.destroyed) == (2, 0, 0)
    assert provisioner.saved_plan("train") == saved
    provisioner.apply("train", saved.id)
    assert any("Creation complete" in each for each in told)
    token = provisioner.outputs("train")["token"]
    assert len(token) == 36
    assert token.encode() not in every_byte(provisioner)
    (row,) = provisioner.list_made()
    assert (row.resource_count, row.document, row.has_plan) == (2, {"say": 2}, False)

    assert provisioner.plan("train", files(2), {"say": 2}).summary.is_empty
    changed = provisioner.plan("train", files(2, first="other"), {"say": 3})
    assert [(each.address, each.action) for each in changed.summary.changes] == [
        ("terraform_data.r0", Action.UPDATE)
    ]
    provisioner.apply("train", changed.id)
    assert provisioner.document("train") == {"say": 3}

    removal = provisioner.plan_removal("train", files(2))
    assert removal.summary.destroyed == 2
    provisioner.apply("train", removal.id)
    assert provisioner.list_made() == []


def test_a_plan_is_applied_once_and_only_the_newest(making: Making) -> None:
    provisioner = making()
    first = provisioner.plan("train", files(1), {})
    second = provisioner.plan("train", files(2), {})
    with pytest.raises(ProvisioningError) as refused:
        provisioner.apply("train", first.id)
    assert refused.value.reason is Reason.NO_PLAN
    provisioner.apply("train", second.id)
    with pytest.raises(ProvisioningError):
        provisioner.apply("train", second.id)


def test_tokens_are_read_anew_without_changing_a_resource(making: Making) -> None:
    provisioner = made(making())
    before = provisioner.outputs("train")
    provisioner.refresh("train", files(2))
    assert provisioner.outputs("train") == before
    assert provisioner.plan("train", files(2), {}).summary.is_empty


def test_what_the_binary_refuses_is_told_and_changes_nothing(making: Making) -> None:
    provisioner = made(making())
    with pytest.raises(ProvisioningError) as refused:
        provisioner.plan("train", {"main.tf.json": b'{"resource": {"no_such": {"a": {}}}}'}, {})
    assert refused.value.reason is Reason.FAILED
    assert refused.value.fix == "Nothing was changed."
    assert provisioner.plan("train", files(2), {}).summary.is_empty


def test_what_was_made_before_a_failure_is_kept(making: Making) -> None:
    provisioner = making()
    failing = files(2)["main.tf.json"].replace(
        b'"input": "r1"', b'"input": "r1", "provisioner": [{"local-exec": {"command": "exit 7"}}]'
    )
    saved = provisioner.plan("train", {"main.tf.json": failing}, {})
    with pytest.raises(ProvisioningError, match="exit status 7"):
        provisioner.apply("train", saved.id)
    rest = provisioner.plan("train", files(2), {}).summary
    assert "terraform_data.r0" not in [each.address for each in rest.changes]


def test_a_cluster_that_nobody_made_is_not_found(making: Making) -> None:
    provisioner = making()
    for ask in (provisioner.document, provisioner.outputs, provisioner.saved_plan):
        with pytest.raises(ProvisioningError) as refused:
            ask("nobody")
        assert refused.value.reason in (Reason.NO_STATE, Reason.NO_PLAN)
