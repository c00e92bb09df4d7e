"""What the versions of a cluster will soon cost is said when it is registered, not afterwards."""

from __future__ import annotations

import pytest

from gpuplane.kube.preflight import NEWEST, OLDEST, ClusterLook


def a_look(number: tuple[int, int], *kueue: str) -> ClusterLook:
    version = f"v{number[0]}.{number[1]}.2"
    preferred = kueue[0] if kueue else ""
    return ClusterLook(
        version, number, "kubernetes", "ON_PREM", preferred, (), kueue_versions=kueue
    )


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (a_look(OLDEST), "v1.29.2, the oldest that is supported"),
        (a_look((NEWEST[0], NEWEST[1] + 1)), "v1.36.2; 1.35 is the newest"),
        (a_look((1, 33), "v1beta1"), "no v1beta2 (since 0.15); v1beta1 is deprecated"),
        (a_look((1, 33), "v1alpha2"), "v1alpha2 and none of v1beta2 and v1beta1"),
    ],
)
def test_a_version_that_nears_its_end_is_told_with_what_to_do(look: ClusterLook, said: str) -> None:
    (warning,) = look.age_warnings
    assert said in warning
    assert not look.is_too_old


@pytest.mark.parametrize(
    "look", [a_look((1, 34)), a_look((1, 30), "v1beta1", "v1beta2"), a_look((1, 35), "v1beta2")]
)
def test_nothing_is_said_of_versions_that_are_well(look: ClusterLook) -> None:
    assert look.age_warnings == ()


def test_kueue_admits_by_itself_only_in_a_version_that_is_spoken_here() -> None:
    spoken = [a_look((1, 33), *kueue).speaks_kueue for kueue in ((), ("v1alpha2",), ("v1beta1",))]
    assert spoken == [False, False, True]
