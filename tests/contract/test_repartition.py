"""What cutting a GPU anew means on every backend that says it can."""

from __future__ import annotations

import pytest

from gpuplane.backends.capabilities import Repartitions
from gpuplane.backends.interface import Backend, BackendError, GpuObservation, MigOrder, Observation
from tests.contract.factories import BackendFactory, until

CANNOT = {"kubernetes", "local"}
"""Backends that leave cutting to whoever runs the machine: it needs root there. On a cluster that
is its MIG manager or the agent of the node, not a client of its API server."""


def find_cut_gpu(seen: Observation) -> tuple[str, GpuObservation]:
    """Return the first GPU in MIG mode with its node."""
    return next((n.name, gpu) for n in seen.nodes for gpu in n.gpus if gpu.mig_enabled)


def an_order(
    seen: Observation, destroy: tuple[tuple[str, int], ...], create: tuple[tuple[str, int], ...]
) -> MigOrder:
    node, gpu = find_cut_gpu(seen)
    return MigOrder(node, gpu.gpu_id, destroy, create)


def test_a_backend_says_whether_it_can_cut(factory: BackendFactory, backend: Backend) -> None:
    assert isinstance(backend, Repartitions) is (factory.kind not in CANNOT)


async def test_an_order_is_carried_out_once(factory: BackendFactory, backend: Backend) -> None:
    if not isinstance(backend, Repartitions):
        assert factory.kind in CANNOT
        return
    seen = await backend.observe()
    _, before = find_cut_gpu(seen)
    gone = before.mig_instances[:2]
    order = an_order(seen, gone, (("2g.20gb", 0),))
    await backend.repartition(order)
    meanwhile = await backend.observe()
    assert not set(gone) & set(find_cut_gpu(meanwhile)[1].mig_instances)
    assert meanwhile.generation > seen.generation
    await backend.repartition(order)

    def is_there(now: Observation) -> bool:
        return ("2g.20gb", 0) in find_cut_gpu(now)[1].mig_instances

    after = await until(factory, backend, is_there, "the new instance is seen")
    assert after.generation > meanwhile.generation
    assert set(find_cut_gpu(after)[1].mig_instances) == {
        ("2g.20gb", 0),
        *before.mig_instances[2:],
    }
    await backend.repartition(order)
    assert (await backend.observe()).generation == after.generation


async def test_an_order_outlives_a_restart(factory: BackendFactory, backend: Backend) -> None:
    if not isinstance(backend, Repartitions):
        assert factory.kind in CANNOT
        return
    seen = await backend.observe()
    gone = find_cut_gpu(seen)[1].mig_instances[:1]
    await backend.repartition(an_order(seen, gone, (("1g.10gb", 2),)))
    again = await factory.open()
    assert not set(gone) & set(find_cut_gpu(await again.observe())[1].mig_instances)
    await until(
        factory,
        again,
        lambda now: ("1g.10gb", 2) in find_cut_gpu(now)[1].mig_instances,
        "the new instance is seen after a restart",
    )


@pytest.mark.parametrize(
    ("destroy", "create"),
    [
        ((), (("4g.40gb", 0),)),
        ((("2g.20gb", 2),), (("1g.10gb", 3),)),
        ((), (("9g.1gb", 0),)),
    ],
)
async def test_an_order_that_cannot_be_carried_out_changes_nothing(
    factory: BackendFactory,
    backend: Backend,
    destroy: tuple[tuple[str, int], ...],
    create: tuple[tuple[str, int], ...],
) -> None:
    if not isinstance(backend, Repartitions):
        assert factory.kind in CANNOT
        return
    seen = await backend.observe()
    with pytest.raises(BackendError) as refused:
        await backend.repartition(an_order(seen, destroy, create))
    assert refused.value.message
    assert find_cut_gpu(await backend.observe()) == find_cut_gpu(seen)
