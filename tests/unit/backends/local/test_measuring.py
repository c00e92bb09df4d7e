"""What is gathered of the use of GPUs, and of whom."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.backends.interface import (
    AttemptRef,
    GpuObservation,
    Phase,
    ReplicaObservation,
    ReplicaPlan,
)
from gpuplane.backends.local.measuring import GpuUse, whole_gpus
from gpuplane.core.ids import AttemptId, GpuId, ReplicaId
from gpuplane.kit.ids import new_id

ATTEMPT = AttemptId(new_id())
HELD = {0: ["GPU-a", "GPU-b"], 1: ["GPU-c"]}


def a_use() -> GpuUse:
    return GpuUse(lambda attempt_id: HELD if attempt_id == ATTEMPT else {})


def a_look(**gpus: tuple[int | None, float | None]) -> Sequence[GpuObservation]:
    """Return GPUs by their last letter with memory used and utilisation."""
    return tuple(
        GpuObservation(
            GpuId(f"GPU-{letter}"),
            index,
            "h100",
            80_000,
            memory_used_mib=memory,
            utilization_ratio=busy,
        )
        for index, (letter, (memory, busy)) in enumerate(gpus.items())
    )  # fmt: skip - one value a GPU


def a_replica(
    rank: int = 0, phase: Phase = Phase.RUNNING, attempt: AttemptId = ATTEMPT
) -> ReplicaObservation:
    return ReplicaObservation(AttemptRef(attempt, 1), rank, phase)


def measured(use: GpuUse, replica: ReplicaObservation) -> tuple[int | None, int | None]:
    found = use.add_to(replica)
    return found.gpu_memory_peak_mib, found.gpu_utilization_permille


def test_the_peak_is_of_the_fullest_gpu_and_utilisation_the_mean_of_all_looks() -> None:
    use = a_use()
    use.note(a_look(a=(1000, 0.5), b=(7000, 0.7)), [a_replica()])
    use.note(a_look(a=(3000, 1.0), b=(5000, 1.0)), [a_replica()])
    assert measured(use, a_replica()) == (7000, 800)


def test_the_same_look_counts_once() -> None:
    use, look = a_use(), a_look(a=(1000, 0.2), b=(1000, 0.2))
    use.note(look, [a_replica()])
    use.note(look, [a_replica()])
    use.note(a_look(a=(1000, 0.8), b=(1000, 0.8)), [a_replica()])
    assert measured(use, a_replica()) == (1000, 500)


def test_what_was_measured_is_told_with_the_end_too() -> None:
    use = a_use()
    use.note(a_look(a=(1000, 0.2), b=(0, 0.4)), [a_replica()])
    use.note(a_look(a=(9000, 0.9), b=(0, 0.9)), [a_replica(phase=Phase.EXITED)])
    assert measured(use, a_replica(phase=Phase.EXITED)) == (1000, 300)


def test_each_rank_has_its_own_gpus_and_others_are_not_measured() -> None:
    use = a_use()
    other = AttemptId(new_id())
    replicas = [a_replica(0), a_replica(1), a_replica(0, attempt=other)]
    use.note(a_look(a=(1, 0.0), b=(2, 0.0), c=(30, 1.0)), replicas)
    assert measured(use, replicas[0]) == (2, 0)
    assert measured(use, replicas[1]) == (30, 1000)
    assert measured(use, replicas[2]) == (None, None)


def test_what_nvml_does_not_say_is_left_out() -> None:
    use = a_use()
    use.note(a_look(a=(500, None), b=(None, None)), [a_replica()])
    assert measured(use, a_replica()) == (500, None)
    use.note((), [a_replica()])
    assert measured(use, a_replica()) == (500, None)


def test_forgotten_attempts_are_not_kept() -> None:
    use = a_use()
    use.note(a_look(a=(500, 0.5)), [a_replica()])
    use.note(a_look(a=(500, 0.5)), [])
    assert measured(use, a_replica()) == (None, None)


def test_only_whole_gpus_are_measured() -> None:
    def plan(rank: int, milli: int, mig: str | None = None) -> ReplicaPlan:
        return ReplicaPlan(ReplicaId(new_id()), rank, "n", (GpuId(f"GPU-{rank}"),), milli, mig)

    shared, instance = plan(1, 500), plan(2, 1000, "GPU-2/1g.10gb@0")
    assert whole_gpus([plan(0, 1000), shared, instance]) == {"0": ["GPU-0"]}
