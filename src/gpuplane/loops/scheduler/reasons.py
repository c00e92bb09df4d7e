"""What waiting jobs were last told, so that a turn stores only what is news.

With thousands in line every start changes the numbers in everyone's sentence; a number that is
two seconds old is good enough, another reason is told at once.
"""

from collections.abc import Collection, Iterable

from gpuplane.core.ids import JobId
from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.decisions import Waiting, WordCount

SAME_WORD_MS = 2_000
"""How long new numbers under the same word wait before they are stored."""

_Told = tuple[int, Reason, tuple[WordCount, ...], int]
"""(version of the job, reason, counts, instant)."""


class ToldReasons:
    """The reason stored last for each waiting job."""

    def __init__(self) -> None:
        """Nobody was told anything."""
        self._told: dict[JobId, _Told] = {}

    def is_news(self, verdict: Waiting, now: int) -> bool:
        """Tell whether a verdict says something that is to be stored now."""
        told = self._told.get(verdict.job_id)
        if told is None:
            return True
        version, reason, counts, at = told
        if version != verdict.version or reason.word is not verdict.reason.word:
            return True
        is_same = reason == verdict.reason and counts == verdict.counts
        return not is_same and not at <= now < at + SAME_WORD_MS

    def note(self, verdicts: Iterable[Waiting], now: int) -> None:
        """Remember what was stored."""
        for verdict in verdicts:
            told = (verdict.version, verdict.reason, verdict.counts, now)
            self._told[verdict.job_id] = told

    def forget_others(self, waiting: Collection[JobId]) -> None:
        """Forget the jobs that wait no more."""
        for job_id in [each for each in self._told if each not in waiting]:
            del self._told[job_id]
