"""Why the others wait: the dominant reason and the counts per filter.

Owns the judgement of what keeps a workload from starting, by what is left at the end of a cycle.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.facts import MigChange
from gpuplane.core.ids import JobId
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling import catalogue
from gpuplane.core.scheduling.admission import QuotaRefusal
from gpuplane.core.scheduling.bench import latest_end
from gpuplane.core.scheduling.decisions import Waiting, WordCount
from gpuplane.core.scheduling.explain import (
    describe_cut,
    describe_late_neighbour,
    describe_refusal,
)
from gpuplane.core.scheduling.filters import EVERYWHERE, has_model
from gpuplane.core.scheduling.network import (
    asks_nvlink,
    is_required,
    largest_nvlink_room,
    largest_room,
)
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.placement import (
    compute_capacity,
    count_placeable,
    needed_replicas,
)
from gpuplane.core.scheduling.repartition import needs_repartition
from gpuplane.core.scheduling.room import probe_place
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.workload import Workload

_FILTER_ORDER = {word: place for place, word in enumerate(catalogue.COUNTED)}


@dataclass(frozen=True, slots=True)
class Blocked:
    """A workload that got no place.

    Args:
        behind_head: Its StrictFIFO queue stopped at a workload before it.
        waits_for_stopping: What is stopping already will make room for it.
        starts_at: The forecast start that is kept for it, in ms, or None.
        cut: The GPUs that can be cut anew for it, or are (`is_cutting`).
    """

    entry: Entry
    position: int
    behind_head: bool = False
    waits_for_stopping: bool = False
    starts_at: int | None = None
    cut: tuple[MigChange, ...] = ()
    is_cutting: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether nothing is to be said of it but why it does not fit."""
        return self.starts_at is None and not self.cut and not self.waits_for_stopping


Said = tuple[Reason, tuple[WordCount, ...]]
"""The dominant reason and the counts per filter."""


class Explainer:
    """Explains one trial's blocked workloads; counts are made once a class."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._by_kind: dict[Hashable, Said] = {}

    def explain_alike(self, entry: Entry, *, is_behind: bool) -> Said:
        """Return what is said of everyone who waits like this one.

        Args:
            entry: Who waits; refused like the others of its place, or behind a StrictFIFO head.
            is_behind: Which of the two.
        """
        return self._say(entry, is_behind=is_behind)

    def explain(self, blocked: Blocked) -> Waiting:
        """Return the verdict of a workload that waits."""
        workload = blocked.entry.workload
        if blocked.cut:
            # Its quota is kept for it, so the queue must not be asked again.
            counts = self._explain_nodes(blocked.entry)[1]
            reason = needs_repartition(workload, blocked.cut, is_underway=blocked.is_cutting)
        else:
            reason, counts = self._say(blocked.entry, is_behind=blocked.behind_head)
        if blocked.starts_at is not None:
            kept = _describe_kept_place(blocked.starts_at, self._trial.now)
            reason = Reason(reason.word, f"{reason.sentence} {kept}", reason.fix)
        if blocked.waits_for_stopping:
            sentence = f"{reason.sentence} What is stopping now makes room for it."
            reason = Reason(reason.word, sentence, "Wait for the stopping workloads to end.")
        return Waiting(
            workload.job_id,
            workload.version,
            reason,
            counts,
            blocked.position,
        )

    def _say(self, entry: Entry, *, is_behind: bool) -> Said:
        if is_behind:
            queue = entry.workload.queue
            sentence = f"Queue {queue} is StrictFIFO and the workload before it waits."
            return Reason(Word.BEHIND_HEAD, sentence, "Wait, or use a BestEffortFIFO queue."), ()
        quota = self._quota_refusal(entry)
        return self._explain_nodes(entry) if quota is None else (quota.reason, ())

    def _quota_refusal(self, entry: Entry) -> QuotaRefusal | None:
        answer = self._trial.answers.first_needed(entry, self._trial.changes)
        return answer if isinstance(answer, QuotaRefusal) else None

    def _explain_nodes(self, entry: Entry) -> Said:
        """Return the dominant reason and the counts per filter, once a kind."""
        if entry.kind is None:
            return self._look_at_nodes(entry.workload)
        found = self._by_kind.get(entry.kind)
        if found is None:
            found = self._by_kind[entry.kind] = self._look_at_nodes(entry.workload)
        return found

    def _look_at_nodes(self, workload: Workload) -> Said:
        """Return the dominant reason and the counts per filter, over every cluster it may use.

        Dominant is the last filter that refused a node: those nodes came closest.
        """
        totals: dict[Word, int] = {}
        nodes = fitting = placeable = 0
        rest: Word = Word.GANG
        for index, bench in enumerate(self._trial.benches):
            if not self._trial.may_use(workload, bench.fleet):
                continue
            row = bench.row(workload)
            for word, refused in bench.count_refused(row):
                totals[word] = totals.get(word, 0) + refused
            nodes += len(bench.fleet)
            fits = int(np.count_nonzero(row.fits))
            near = self._trial.affinity_nodes(workload, index)
            if near is not None:
                apart = fits - int(np.count_nonzero(row.fits & near))
                fits -= apart
                if apart:
                    totals[Word.AFFINITY] = totals.get(Word.AFFINITY, 0) + apart
            fitting += fits
            if fits:
                here = 1
                if workload.replicas.count > 1:
                    allowed = self._trial.allowed_nodes(workload, index, None)
                    here = count_placeable(workload, bench, allowed)
                    placeable = max(placeable, here)
                rest = self._rest_word(workload, index, here)
        if rest is Word.QUOTA_EXCEEDED and self._is_free_now(workload):
            rest = Word.AFFINITY if self._has_late_neighbour(workload) else Word.BEHIND_HEAD
        if fitting:
            totals[rest] = totals.get(rest, 0) + fitting
        after = len(_FILTER_ORDER)
        counts = sorted(totals.items(), key=lambda item: _FILTER_ORDER.get(item[0], after))
        if fitting:
            word = rest
        else:
            word = counts[-1][0] if counts else Word.GPU_COUNT
        if word is Word.AFFINITY and self._has_late_neighbour(workload):
            reason = describe_late_neighbour(workload)
        else:
            reason = describe_refusal(workload, word, counts, nodes, placeable)
            cut = self._count_cut(workload) if word is Word.NODE_TOO_SMALL else 0
            if cut:
                reason = describe_cut(reason, cut)
        return reason, tuple(WordCount(each, count) for each, count in counts)

    def _count_cut(self, workload: Workload) -> int:
        """Return how many nodes would be large enough if their GPUs were not cut by MIG."""
        found, wanted = 0, workload.resources.gpu_count
        for bench in self._trial.benches:
            need, fleet = bench.row(workload).need, bench.fleet
            if not need.wants_gpus or not self._trial.may_use(workload, fleet):
                continue
            cut = np.bitwise_count(fleet.healthy_mask) >= wanted
            cut &= np.bitwise_count(fleet.usable_mask) < wanted
            if workload.resources.gpu_model is not None:
                cut &= has_model(need, fleet, EVERYWHERE)
            found += int(np.count_nonzero(cut))
        return found

    def _is_free_now(self, workload: Workload) -> bool:
        """Tell whether there is a place after all: since its turn, or were no head's quota kept."""
        if not self._trial.heads and not self._has_late_neighbour(workload):
            return False
        return probe_place(self._trial, workload) is not None

    def _has_late_neighbour(self, workload: Workload) -> bool:
        """Tell whether a job that it is to be near was placed in this cycle."""
        near = workload.placement.co_locate_with
        if not near:
            return False
        started = {each.job_id for each, _ in self._trial.started}
        return any(JobId(each) in started for each in near)

    def _rest_word(self, workload: Workload, index: int, placeable: int) -> Word:
        """Return what keeps a workload away from nodes that pass every filter.

        Args:
            workload: What waits.
            index: The cluster looked at.
            placeable: How many replicas would fit there now, whatever their flavors.
        """
        bench = self._trial.benches[index]
        fits = bench.row(workload).fits
        near = self._trial.affinity_nodes(workload, index)
        if near is not None:
            fits = fits & near
        if (
            bench.is_holding
            and not (fits & bench.open_nodes(latest_end(workload, self._trial.now))).any()
        ):
            return Word.BEHIND_HEAD
        is_linked = asks_nvlink(workload) and workload.placement.links_required
        if is_linked or is_required(workload):
            row = bench.row(workload)
            capacity = compute_capacity(row, self._trial.allowed_nodes(workload, index, None))
            needed = needed_replicas(workload.replicas)
            is_enough = needed <= int(capacity.sum())
            if is_linked and largest_nvlink_room(bench.fleet, capacity) < needed and is_enough:
                return Word.TOPOLOGY
            if largest_room(workload, bench.fleet, capacity) < needed and is_enough:
                return Word.NETWORK
        if placeable < needed_replicas(workload.replicas):
            return Word.GANG
        return Word.QUOTA_EXCEEDED


def _describe_kept_place(starts_at: int, now: int) -> str:
    """Return the sentence on a kept place, in whole minutes: it must not change every cycle."""
    if starts_at <= now:
        return "A place is kept for it; the work there is over its expected time."
    minute_ms = 60 * MS_PER_S
    at = datetime.fromtimestamp(-(-starts_at // minute_ms) * 60, UTC)
    return f"A place is kept for it from {at:%Y-%m-%dT%H:%MZ} on."
