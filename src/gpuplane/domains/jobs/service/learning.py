"""Learns from attempts that are over, and says what to expect of jobs that are not.

What is remembered is kept by likeness (`core.prediction.experience`), each ended attempt once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.prediction.experience import (
    NOTHING,
    Key,
    Record,
    Sample,
    list_keys,
    merge_records,
    record_of,
)
from gpuplane.core.prediction.predicting import Prediction, predict
from gpuplane.core.prediction.requests import RequestFacts
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import experience as repository
from gpuplane.domains.jobs.repository import jobs as jobs_repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.learning import class_of, request_facts, sample_of

LEARN_BATCH = 200
"""Attempts learned from in one unit: bounds how long it holds the writer."""
MAX_KEPT = 20_000
"""Records kept in memory between questions: about 100 MB when all are full."""
MAX_FACTS = 1_000
"""Requests kept beyond those of the jobs that wait, before they are cleared out."""


def has_unlearned(session: ReadSession) -> bool:
    """Return whether an attempt is over that nothing was learned from yet."""
    return repository.has_unlearned(session)


def learn(session: WriteSession, limit: int, now: int) -> int:
    """Learn from attempts that are over, each once; return how many were looked at.

    Learning the same attempts again, or in another order, changes nothing: the mark on the
    attempt and what it taught are one commit, and records are sums.
    """
    claimed = repository.claim_unlearned(session, limit, now)
    attempts = attempts_repository.load_attempts(session, claimed)
    jobs = jobs_repository.load_jobs(session, list({each.job_id for each in attempts.values()}))
    runs = repository.list_runs_of(session, list(jobs))
    simulated = _simulated_clusters(session)
    taught: dict[Key, list[Sample]] = {}
    for attempt in attempts.values():
        job = jobs.get(attempt.job_id)
        if job is None:
            continue  # its row cannot be read: it was set aside
        facts = request_facts(job, simulated=attempt.cluster_id in simulated)
        kind = class_of(attempt, facts)
        sample = sample_of(attempt, kind, _runs_of(job, attempt, runs.get(job.id, [])))
        if sample is not None:
            for key in list_keys(facts, kind):
                taught.setdefault(key, []).append(sample)
    known = repository.load_records(session, [key.name for key in taught])
    repository.store_records(
        session,
        {
            key: merge_records([known[key.name], record_of(samples)])
            for key, samples in taught.items()
        },
        now,
    )
    return len(claimed)


def has_old_experience(session: ReadSession, before: int) -> bool:
    """Return whether something is remembered that nothing was added to since an instant."""
    return repository.has_old(session, before)


def prune_experience(session: WriteSession, before: int) -> int:
    """Forget what nothing was added to since an instant."""
    return repository.delete_old(session, before)


def _runs_of(
    job: Job, attempt: Attempt, runs: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int]]:
    """Return the runs whose work an attempt goes on with: its own, or all when it resumed."""
    resumed = job.last_checkpoint is not None
    return [
        (since, until)
        for number, since, until in runs
        if number == attempt.number or (resumed and number < attempt.number)
    ]


def _simulated_clusters(session: ReadSession) -> frozenset[ClusterId]:
    return frozenset(each.id for each in clusters.list_clusters(session) if each.simulated)


@dataclass(slots=True)
class _Known:
    """A prediction, the job's version and facts it was made from, and the records it rests on."""

    version: int
    facts: RequestFacts
    names: frozenset[str]
    prediction: Prediction


@dataclass(slots=True)
class Experience:
    """What a process knows of ended work; asks the database only for what it does not know.

    Kept between questions: records that change are seen by the number of their last change.
    Jobs that ask the same are predicted once. Losing it all is no harm.
    """

    _change: int = -1
    _records: dict[str, Record] = field(default_factory=dict)
    _facts: dict[RequestFacts, RequestFacts] = field(default_factory=dict)
    _known: dict[JobId, _Known] = field(default_factory=dict)
    _stale: set[JobId] = field(default_factory=set)

    def predict(
        self, session: ReadSession, jobs: Sequence[tuple[Job, ClusterId | None]]
    ) -> dict[JobId, Prediction]:
        """Return what to expect of jobs.

        Args:
            session: Where what is remembered lies.
            jobs: Each with the cluster it runs on or asks for, if it names one.
        """
        self._catch_up(session)
        simulated: frozenset[ClusterId] | None = None
        asked: dict[RequestFacts, list[Job]] = {}
        for job, cluster_id in jobs:
            known = self._known.get(job.id)
            if known is not None and known.version == job.version:
                if job.id in self._stale:
                    asked.setdefault(known.facts, []).append(job)
                continue
            if simulated is None:
                simulated = _simulated_clusters(session)
            facts = request_facts(job, simulated=cluster_id in simulated)
            asked.setdefault(self._facts.setdefault(facts, facts), []).append(job)
        if asked:
            self._answer(session, asked)
        return {job.id: self._known[job.id].prediction for job, _ in jobs}

    def keep_only(self, job_ids: Collection[JobId]) -> None:
        """Forget the predictions of other jobs."""
        self._known = {job_id: each for job_id, each in self._known.items() if job_id in job_ids}
        self._stale &= self._known.keys()
        if len(self._facts) > 2 * len(self._known) + MAX_FACTS:
            self._facts = {each.facts: each.facts for each in self._known.values()}

    def _catch_up(self, session: ReadSession) -> None:
        newest = repository.latest_change(session)
        if newest == self._change:
            return
        if newest < self._change or len(self._records) > MAX_KEPT:
            self._records.clear()  # another database, or too much: begin anew
            self._known.clear()
            self._stale.clear()
        elif self._records:
            changed = repository.list_changed(session, self._change) & self._records.keys()
            self._records |= repository.load_records(session, changed)
            self._stale.update(
                job_id for job_id, known in self._known.items() if known.names & changed
            )
        self._change = newest

    def _answer(self, session: ReadSession, asked: Mapping[RequestFacts, Sequence[Job]]) -> None:
        """Predict in rounds: each asks for the records that the last one missed, all at once."""
        left = dict(asked)
        while left:
            missing: set[str] = set()
            for facts, jobs in list(left.items()):
                remember = _Remember(self._records)
                prediction = predict(facts, remember)
                unknown = remember.names - self._records.keys()
                if unknown:
                    missing |= unknown
                    continue
                names = frozenset(remember.names)
                for job in jobs:
                    self._known[job.id] = _Known(job.version, facts, names, prediction)
                    self._stale.discard(job.id)
                del left[facts]
            if missing:
                self._records |= repository.load_records(session, missing)


@dataclass(slots=True)
class _Remember:
    """Looks records up and notes which were asked for."""

    records: Mapping[str, Record]
    names: set[str] = field(default_factory=set)

    def __call__(self, key: Key) -> Record:
        self.names.add(key.name)
        return self.records.get(key.name, NOTHING)
