"""What a token may hold, where a role lies, which clusters a project may use."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.domains.identity.rules import (
    ClusterChoice,
    missing_scopes,
    narrowed_scopes,
    place_of,
)

words = st.frozensets(st.sampled_from(["a", "b", "c", "d"]))


@given(st.none() | words, st.none() | words)
def test_a_token_never_holds_more_than_the_token_that_made_it(
    asked: frozenset[str] | None, held: frozenset[str] | None
) -> None:
    made = narrowed_scopes(asked, held)
    if held is not None:
        assert made is not None
        assert set(made) <= held
    if asked is not None:
        assert made is not None
        assert set(made) <= asked
        assert set(missing_scopes(asked, held)) == set(asked) - set(made)


def test_the_place_of_a_role_is_one_word() -> None:
    tenant, project = TenantId(UUID(int=1)), ProjectId(UUID(int=2))
    assert place_of(None, None) == "platform"
    assert place_of(tenant, None) == f"tenant/{tenant}"
    assert place_of(tenant, project) == f"project/{project}"


def test_required_clusters_shut_the_others_out_and_excluded_ones_are_out_anyway() -> None:
    one, two = ClusterId(UUID(int=1)), ClusterId(UUID(int=2))
    assert ClusterChoice().allows(one)
    assert ClusterChoice(preferred=frozenset({one})).allows(two)
    assert not ClusterChoice(required=frozenset({one})).allows(two)
    assert not ClusterChoice(required=frozenset({one}), excluded=frozenset({one})).allows(one)
