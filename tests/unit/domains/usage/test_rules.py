"""Totals that add up, and whose use may be told."""

from __future__ import annotations

from uuid import UUID

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.domains.usage.rules import Scope, StateTotals, UsageRow

TENANT, PROJECT = TenantId(UUID(int=1)), ProjectId(UUID(int=2))


def test_states_add_up_only_to_the_wall_clock() -> None:
    states = dict.fromkeys(DeviceState, 2)
    assert StateTotals(ClusterId(UUID(int=1)), False, 1, states, 10).adds_up
    assert not StateTotals(ClusterId(UUID(int=1)), False, 1, states, 11).adds_up


def test_what_is_held_is_charged_busy_or_not_and_reserved_when_agreed() -> None:
    row = UsageRow({}, False, gpu_busy=5, gpu_idle=3, gpu_reserved=9, gpu_reserved_billable=2)
    assert row.gpu_billable == 10


def test_a_scope_covers_whole_tenants_and_single_projects() -> None:
    assert Scope(frozenset({TENANT})).covers(TENANT, PROJECT)
    assert Scope(project_ids=frozenset({PROJECT})).covers(TENANT, PROJECT)
    assert not Scope().covers(TENANT, PROJECT)
