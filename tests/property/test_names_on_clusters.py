"""What is one tenant's on a cluster is no other's, whatever tenants and volumes are called."""

from __future__ import annotations

import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpuplane.backends.kubernetes.names import claim_name
from gpuplane.kube.tenancy import namespace_of

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")

short = st.from_regex(LABEL, fullmatch=True)
long = st.builds(lambda char, tail: char * 60 + tail, st.sampled_from("ab"), st.sampled_from("xyz"))
names = short | long


@given(names, names)
@example("a-b", "a--b")
@example("a" * 56, "a" * 57)
@example("a" * 60, "a" * 61)
def test_two_tenants_never_share_a_namespace_which_is_a_label(one: str, other: str) -> None:
    assume(one != other)
    assert namespace_of(one) != namespace_of(other)
    assert LABEL.fullmatch(namespace_of(one))


@given(names)
def test_no_tenant_can_be_called_so_that_it_gets_the_namespace_of_a_longer_name(name: str) -> None:
    space = namespace_of(name)
    assert len(name) <= 56 or not LABEL.fullmatch(space.removeprefix("tenant-"))


@given(names, names)
@example("a-b", "a--b")
@example("a" * 50, "a" * 51)
def test_two_volumes_of_a_tenant_never_share_a_claim(one: str, other: str) -> None:
    assume(one != other)
    assert claim_name(one) != claim_name(other)
    assert SUBDOMAIN.fullmatch(claim_name(one))
