"""Words and tables of clusters: what is none is left out, what others have is said."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gpuplane.cli.accounts import ACCOUNT, account_lines
from gpuplane.cli.commands.fleet import others_sentence
from gpuplane.cli.commands.queues import _groups
from gpuplane.cli.flavors import flavor_named, read_flavors
from gpuplane.core.reasons import TAKEN_BY_OTHERS


def a_queue(**quota: int) -> dict[str, Any]:
    resources = [
        {"name": f"nvidia.com/{name}", "nominalQuota": amount} for name, amount in quota.items()
    ]
    return {"resourceGroups": [{"flavors": [{"name": "nvidia-l4", "resources": resources}]}]}


def test_a_queue_is_shown_without_what_it_owns_none_of() -> None:
    assert _groups(a_queue(gpu=4, mig=0)) == "nvidia-l4:gpu=4"


def test_a_queue_that_owns_nothing_says_of_what() -> None:
    assert _groups(a_queue(gpu=0)) == "nvidia-l4:gpu=0"


@pytest.mark.parametrize(
    ("model", "models", "flavor"),
    [
        ("T4", [], "nvidia-t4"),
        ("L4", ["nvidia-l4", "nvidia-l40s"], "nvidia-l4"),
        ("A100", ["nvidia-a100-80gb", "nvidia-h100-80gb"], "nvidia-a100-80gb"),
        ("lab-chip", ["maker-lab-chip-2"], "maker-lab-chip-2"),
        ("NoSuch", ["nvidia-l4"], "nosuch"),
    ],
)
def test_a_model_in_any_spelling_is_its_flavor(model: str, models: list[str], flavor: str) -> None:
    assert flavor_named(model, models) == flavor


def test_a_family_of_which_several_are_there_is_asked_back() -> None:
    with pytest.raises(click.BadParameter, match="nvidia-a100-40gb or nvidia-a100-80gb"):
        flavor_named("A100", ["nvidia-a100-80gb", "nvidia-a100-40gb"][::-1])


@pytest.mark.parametrize(
    ("gpus", "instances"),
    [(("L4=2", "nvidia-l4=3"), ()), ((), ("a100-40gb/1g.5gb=1", "a100-40gb/1g.5gb=1"))],
)
def test_a_quota_that_is_named_twice_is_refused_by_both(
    gpus: tuple[str, ...], instances: tuple[str, ...]
) -> None:
    first, second = gpus or instances
    with pytest.raises(click.BadParameter) as refused:
        read_flavors(gpus, instances, ["nvidia-l4"])
    assert f"{first!r} and {second!r} are two quotas" in refused.value.message


@pytest.mark.parametrize(
    ("gpus", "instances", "said"),
    [
        (("L4=-2",), (), "'L4=-2': COUNT must be 0 or more."),
        (("L4=2:-1",), (), "'L4=2:-1': BORROW must be 0 or more."),
        ((), ("a100-40gb/1g.5gb=-1",), "'a100-40gb/1g.5gb=-1': COUNT must be 0 or more."),
    ],
)
def test_a_quota_below_none_is_refused_by_what_is_wrong_with_it(
    gpus: tuple[str, ...], instances: tuple[str, ...], said: str
) -> None:
    with pytest.raises(click.BadParameter) as refused:
        read_flavors(gpus, instances, ["nvidia-l4"])
    assert refused.value.message == said


def test_whole_gpus_and_instances_are_two_quotas_and_an_amount_of_any_length_is_passed_on() -> None:
    made = read_flavors(["a100-40gb=09:" + "9" * 20], ["a100-40gb/1g.5gb=1"], [])
    told = [each["resources"][0] for each in made]
    assert told == [
        {"name": "nvidia.com/gpu", "nominalQuota": "9", "borrowingLimit": "9" * 20},
        {"name": "nvidia.com/mig-1g.5gb", "nominalQuota": "1"},
    ]


def a_line(resource: str, nominal: str | None, used: str, **more: str) -> dict[str, Any]:
    """Return a line of a queue's account, as the API tells it."""
    told = {"flavor": "nvidia-l4", "resource": f"nvidia.com/{resource}", "nominal": nominal,
            "used": used, "borrowed": "0", "lent": "0", "available": "1"}  # fmt: skip
    return {**told, **more}


def test_an_account_tells_what_is_owned_used_borrowed_and_lent_of_each_resource() -> None:
    none = a_line("mig-1g.6gb", "0", "0")
    queues = [
        {"name": "qa", "jobs": 2, "resources": [
            a_line("gpu", "2", "3", borrowed="1"), none, a_line("mig-2g.12gb", "0", "1")]},
        {"name": "qb", "jobs": 0, "resources": [none]},
        {"name": "all", "jobs": 0, "resources": [a_line("gpu", None, "0")]},
        {"name": "empty", "jobs": 0, "resources": []},
    ]  # fmt: skip
    shown = [[column.value(row) for column in ACCOUNT[:7]] for row in account_lines(queues)]
    assert shown == [
        ["qa", 2, "nvidia-l4", "gpu", "2", "3", "1"],
        ["qa", None, "nvidia-l4", "mig-2g.12gb", "0", "1", "0"],
        ["qb", 0, "nvidia-l4", "mig-1g.6gb", "0", "0", "0"],
        ["all", 0, "nvidia-l4", "gpu", "no limit", "0", "0"],
        ["empty", 0, "", "", "", None, None],
    ]


def a_node(name: str, *messages: str) -> dict[str, Any]:
    return {"name": name, "gpus": [{"message": message} for message in messages]}


def test_gpus_that_others_took_are_told_apart_from_broken_ones() -> None:
    taken = f"{TAKEN_BY_OTHERS} shop/web-1"
    nodes = [a_node("l4-1", taken, taken, ""), a_node("l4-2", "XID 79", ""), a_node("l4-3", taken)]
    said = others_sentence(nodes)
    assert said.startswith("3 of those down are taken by pods that are no jobs of gpuplane, on ")
    assert "on l4-1, l4-3: gpuplane nodes show l4-1" in said
    assert others_sentence([a_node("l4-2", "XID 79")]) == ""
