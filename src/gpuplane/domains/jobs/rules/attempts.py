"""What the observations of an attempt's replicas mean for the attempt: pure judgement."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.lifecycle.jobs import StopIntent
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType
from gpuplane.domains.jobs.rules.values import Attempt, Job, Replica

OVER = frozenset({"exited", "lost"})


class Standing(StrEnum):
    """Where an attempt stands as a whole."""

    STARTING = "starting"
    RUNNING = "running"
    FAILING = "failing"
    """A replica ended badly and the others still run: they are to be stopped."""
    UNREACHABLE = "unreachable"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class AttemptVerdict:
    """Where an attempt stands; when over or failing, why."""

    standing: Standing
    word: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None


def judge_attempt(job: Job, attempt: Attempt, seen: Sequence[Replica]) -> AttemptVerdict:
    """Return where an attempt stands, from what is known of every replica.

    Args:
        job: Its job; a SERVICE runs when every replica with a health check is ready, and where
            Kueue admits each of them, when as few are as it may be scaled to, at least one.
        attempt: The attempt as stored.
        seen: All its replicas as last observed, by rank; those that were asked to leave say
            nothing of the others.
    """
    if not seen:  # a service that was scaled to zero: it goes on until it is stopped
        stops = attempt.state == "stopping"
        return AttemptVerdict(Standing.STARTING if stops else Standing.RUNNING)
    bad = _find_culprit(job, attempt, [each for each in seen if each.leaving_at is None])
    if all(replica.phase in OVER for replica in seen):
        return _judge_over(job, attempt, seen, bad)
    if bad is not None and attempt.state != "stopping":
        return AttemptVerdict(
            Standing.FAILING, bad.reason or str(Word.NON_ZERO_EXIT), _sentence(bad, seen),
            bad.exit_code, bad.signal,
        )  # fmt: skip
    live = [each for each in seen if each.phase not in OVER and each.leaving_at is None]
    works = sum(each.phase == "running" and each.ready is not False for each in live)
    if attempt.by_pod and works >= _find_enough(job, attempt):
        return AttemptVerdict(Standing.RUNNING)
    if any(replica.phase == "unreachable" for replica in seen):
        return AttemptVerdict(Standing.UNREACHABLE)
    if works == len(live) and not attempt.by_pod:
        return AttemptVerdict(Standing.RUNNING)
    return AttemptVerdict(Standing.STARTING)


def _find_enough(job: Job, attempt: Attempt) -> int:
    """Return how many ready replicas make a service run whose others Kueue may admit much later."""
    asked = job.spec.replicas
    fewest = asked.fewest if asked.most > asked.fewest else 1
    wanted = asked.count if attempt.replicas_wanted is None else attempt.replicas_wanted
    return max(1, min(fewest, wanted))


def _find_culprit(job: Job, attempt: Attempt, seen: Sequence[Replica]) -> Replica | None:
    """Return the replica that ended badly by itself, the first in time; None when none did badly.

    When one fails the product stops the others, whose ends say nothing of the job: they lie after
    the stop was asked for, and within one instant they are the ones ended by a signal. Only where
    all ends are such ends is the first of those told.
    """
    asked = None
    if attempt.stop_deadline is not None:
        asked = attempt.stop_deadline - attempt.grace_s * 1000

    def order(replica: Replica) -> tuple[bool, bool, int, bool, int]:
        ended = replica.ended_at
        was_stopped = asked is not None and ended is not None and ended > asked
        return was_stopped, ended is None, ended or 0, replica.signal is not None, replica.rank

    return min((each for each in seen if _ended_badly(job, each)), key=order, default=None)


def _ended_badly(job: Job, replica: Replica) -> bool:
    if replica.phase == "lost":
        return True
    if replica.phase != "exited":
        return False
    if job.spec.job_type is JobType.SERVICE and replica.exit_code == 0:
        return False
    return replica.exit_code != 0 or replica.signal is not None


def _judge_over(
    job: Job, attempt: Attempt, seen: Sequence[Replica], bad: Replica | None
) -> AttemptVerdict:
    if attempt.stop_intent is not None and attempt.stop_intent is not StopIntent.FAIL:
        first = bad or seen[0]
        return AttemptVerdict(
            Standing.OVER, attempt.stop_reason, attempt.stop_message, first.exit_code, first.signal
        )
    if attempt.stop_intent is StopIntent.FAIL:
        first = bad or seen[0]
        return AttemptVerdict(
            Standing.OVER, attempt.stop_reason or first.reason, attempt.stop_message,
            first.exit_code, first.signal,
        )  # fmt: skip
    if bad is None:
        what = "stopped by itself" if job.spec.job_type is JobType.SERVICE else "completed"
        return AttemptVerdict(Standing.OVER, str(Word.COMPLETED), f"{job.name} {what}.", 0)
    return AttemptVerdict(
        Standing.OVER, bad.reason or str(Word.NON_ZERO_EXIT), _sentence(bad, seen),
        bad.exit_code, bad.signal,
    )  # fmt: skip


def _sentence(bad: Replica, seen: Sequence[Replica]) -> str:
    who = f"Replica {bad.rank}" if len(seen) > 1 else "It"
    if bad.message:
        return f"{who}: {bad.message}" if len(seen) > 1 else bad.message
    if bad.phase == "lost":
        return f"{who} was lost: what watched it is gone."
    if bad.signal is not None:
        return f"{who} was ended by signal {bad.signal}."
    return f"{who} ended with exit code {bad.exit_code}."
