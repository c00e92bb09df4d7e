"""What is known of a cluster now, and which attempts that changes: state in memory, no client.

A cache and nothing else: it is filled by informers and by our own writes, and an empty one comes
to the same answers once they have synced. Numbers changes so that a turn is told only what moved.

Labels do not make an object one of an attempt: a tenant can put any on its own. What lies elsewhere
than the attempt's record says is kept, as the record may be heard of later, and never looked at.
"""

import uuid
from collections.abc import Iterable
from dataclasses import replace

from gpuplane.backends.interface import Phase, ReplicaObservation, ScaleObservation
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import read_instances, read_places
from gpuplane.backends.kubernetes.failures import Failures
from gpuplane.backends.kubernetes.observing import find_scaler, find_wanted, has_vanished
from gpuplane.backends.kubernetes.ranking import observe
from gpuplane.backends.kubernetes.records import FORGOTTEN, LASTING, STARTED, Record
from gpuplane.backends.kubernetes.reports import Report
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import NodeState, Sight, pods_by_rank
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import AttemptId, GpuId

_Key = tuple[str, str, str]
"""Kind, namespace and name of a workload."""

_KEPT_GONE = 4
"""Pods of one attempt that are remembered after they went: how the last of each rank ended."""


class ClusterView:
    """Records, workloads, pods and nodes of one cluster, and what is seen of each attempt."""

    def __init__(self) -> None:
        self._records: dict[AttemptId, tuple[int, Record]] = {}
        self._pods: dict[AttemptId, dict[str, Pod]] = {}
        self._gone: dict[AttemptId, set[str]] = {}
        self._mains: dict[AttemptId, dict[_Key, Main]] = {}
        self._parts: dict[AttemptId, dict[_Key, Main]] = {}
        self._nodes: dict[str, NodeState] = {}
        self._on_node: dict[str, set[AttemptId]] = {}
        self._dirty: set[AttemptId] = set()
        self._unsettled: set[AttemptId] = set()
        self._life = uuid.uuid4().hex[:12]
        self._number = 0
        self._reports: dict[tuple[AttemptId, int], tuple[Report, int | None]] = {}
        self._troubles: dict[AttemptId, str] = {}
        self._routes: dict[AttemptId, dict[str, tuple[str, str]]] = {}
        self._last: dict[tuple[AttemptId, int], tuple[int, ReplicaObservation]] = {}
        self._scales: dict[AttemptId, tuple[int, ScaleObservation]] = {}
        self._vanished: set[AttemptId] = set()
        self._failures = Failures()

    # What comes in

    def take_record(self, record: Record, version: int) -> None:
        """Note a record, unless a newer one is known."""
        known = self._records.get(record.id)
        if known is None or known[0] < version:
            self._records[record.id] = (version, record)
            self._touch(record.id)

    def drop_record(self, attempt_id: AttemptId, version: int) -> None:
        """Note that a record was swept; a newer one of the same attempt stays."""
        known = self._records.get(attempt_id)
        if known is not None and known[0] <= version:
            del self._records[attempt_id]
            self._touch(attempt_id)

    def take_pod(self, pod: Pod) -> AttemptId | None:
        """Note a pod as it is now; return its attempt, None where it is none of ours."""
        attempt_id = attempt_of(pod.metadata.labels)
        if attempt_id is None:
            return None
        self._pods.setdefault(attempt_id, {})[pod.metadata.uid] = pod
        if self._is_at_home(attempt_id, pod):
            self._troubles.pop(attempt_id, None)
        self._gone.get(attempt_id, set()).discard(pod.metadata.uid)
        if pod.spec.node_name:
            self._on_node.setdefault(pod.spec.node_name, set()).add(attempt_id)
        self._touch(attempt_id)
        return attempt_id

    def drop_pod(self, pod: Pod) -> None:
        """Note that a pod is gone; how it was last seen stays until the end is recorded."""
        attempt_id = attempt_of(pod.metadata.labels)
        if attempt_id is None:
            return
        pods = self._pods.setdefault(attempt_id, {})
        pods[pod.metadata.uid] = pod
        gone = self._gone.setdefault(attempt_id, set())
        gone.add(pod.metadata.uid)
        beside = [uid for uid in gone if pods[uid].metadata.namespace == pod.metadata.namespace]
        old = sorted(beside, key=lambda uid: pods[uid].metadata.creation_timestamp)
        ranks = len(record.ranks) if (record := self.record(attempt_id)) else 1
        for uid in old[: -max(_KEPT_GONE, ranks)]:
            gone.discard(uid)
            del pods[uid]
        self._touch(attempt_id)

    def take_main(self, main: Main) -> None:
        """Note a workload as it is now; the Job of a JobSet is a part of one."""
        if names.PART in main.metadata.labels:  # of a chart: its release stands for all of it
            return
        attempt_id = attempt_of(main.metadata.labels)
        if attempt_id is not None:
            among = self._parts if _is_of_set(main) else self._mains
            among.setdefault(attempt_id, {})[_key(main)] = main
            self._touch(attempt_id)

    def drop_main(self, main: Main) -> None:
        """Note that a workload is gone."""
        attempt_id = attempt_of(main.metadata.labels)
        among = self._parts if _is_of_set(main) else self._mains
        found = among.get(attempt_id, {}) if attempt_id is not None else {}
        known = found.get(_key(main))
        if attempt_id and known is not None and known.metadata.uid == main.metadata.uid:
            del found[_key(main)]
            if not found:
                del among[attempt_id]
            self._touch(attempt_id)

    def take_node(self, name: str, state: NodeState | None) -> None:
        """Note the state of a node, None when it is gone."""
        if self._nodes.get(name) == state:
            return
        if state is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = state
        self._dirty |= self._on_node.get(name, set())

    def take_report(self, attempt_id: AttemptId, rank: int, report: Report, now: int) -> bool:
        """Note what a replica reported; return whether that is news.

        Args:
            now: When it was read: a new checkpoint counts from then.
        """
        known, since = self._reports.get((attempt_id, rank), (Report(), None))
        if report == known or self.record(attempt_id) is None:
            return False
        if report.checkpoint != known.checkpoint:
            since = now
        self._reports[attempt_id, rank] = (report, since)
        self._dirty.add(attempt_id)
        return True

    def take_route(self, attempt_id: AttemptId, namespace: str, url: str, trouble: str) -> None:
        """Note where the Route of a service leads, or why its router refuses it."""
        known = self._routes.setdefault(attempt_id, {})
        if url or trouble:
            known[namespace] = (url, trouble)
        else:
            known.pop(namespace, None)
        self._dirty.add(attempt_id)

    def take_trouble(self, attempt_id: AttemptId, why: str) -> bool:
        """Note why no pod of an attempt could be made; return whether that is news."""
        if self._pods_at_home(attempt_id) or self._troubles.get(attempt_id, "") == why:
            return False
        self._troubles[attempt_id] = why
        self._dirty.add(attempt_id)
        return True

    # What is known

    def record(self, attempt_id: AttemptId) -> Record | None:
        """Return the record of an attempt."""
        known = self._records.get(attempt_id)
        return known[1] if known is not None else None

    def records(self) -> list[Record]:
        """Return every record that is known."""
        return [record for _, record in self._records.values()]

    def pods(self, attempt_id: AttemptId) -> list[Pod]:
        """Return the pods of an attempt that are there."""
        gone = self._gone.get(attempt_id, set())
        return [pod for uid, pod in self._pods_at_home(attempt_id).items() if uid not in gone]

    def main(self, attempt_id: AttemptId) -> Main | None:
        """Return the workload of an attempt."""
        found = self._mains_at_home(attempt_id)
        return found[0] if found else None

    def find_owner(self, uid: str) -> AttemptId | None:
        """Return the attempt whose workload or pod has a uid, None where none of ours has it."""
        mains = (
            known
            for known in self._mains
            if any(main.metadata.uid == uid for main in self._mains_at_home(known))
        )
        pods = (
            known
            for known, found in self._pods.items()
            if uid in found and self._is_at_home(known, found[uid])
        )
        return next(mains, None) or next(pods, None)

    def mains(self) -> list[Main]:
        """Return every workload of ours, and what has the labels of an attempt without a record."""
        return [main for known in self._mains for main in self._mains_at_home(known)]

    def reporting_pods(self) -> dict[tuple[AttemptId, int, str], Pod]:
        """Return the running pods that may report in files, by attempt, rank and uid."""
        found = {}
        for attempt_id, (_, record) in self._records.items():
            with self._failures.kept("who reports of attempt", attempt_id):
                if record.fate != STARTED or record.is_over or record.kind in LASTING:
                    continue
                sight = self.sight(attempt_id)
                for rank, pod in pods_by_rank(sight).items() if sight is not None else ():
                    main = pod.main
                    is_there = pod.metadata.uid not in self._gone.get(attempt_id, ())
                    if is_there and main is not None and main.state.running is not None:
                        found[attempt_id, rank, pod.metadata.uid] = pod
        return found

    def without_pods(self) -> dict[AttemptId, Main]:
        """Return the Jobs that were let go and have no pod, of which none was ever seen."""
        found = {}
        for attempt_id, (_, record) in self._records.items():
            with self._failures.kept("whether pods are made for attempt", attempt_id):
                if record.fate != STARTED or record.is_over or record.evict_reason:
                    continue
                if record.is_release:
                    continue  # the Job that stands in line for one makes no pods
                main = self.main(attempt_id)
                if main is None or main.kind != "Job" or self._pods_at_home(attempt_id):
                    continue
                if not main.spec.suspend and not main.metadata.deletion_timestamp:
                    found[attempt_id] = main
        return found

    def held_gpus(self) -> set[GpuId]:
        """Return the GPUs that attempts of ours have or are given."""
        found: set[GpuId] = set()
        for attempt_id, (_, record) in self._records.items():
            with self._failures.kept("the GPUs of attempt", attempt_id):
                found |= set() if record.is_over else self._gpus_of(attempt_id)
        return found

    def _gpus_of(self, attempt_id: AttemptId) -> set[GpuId]:
        main = self.main(attempt_id)
        text = main.metadata.annotations.get(names.PLACEMENTS) if main is not None else None
        told = [place.annotations for place in read_places(text).values()]
        told += [pod.metadata.annotations for pod in self.pods(attempt_id) if not pod.is_over]
        return {gpu_id for each in told for gpu_id in _gpus(each.get(names.GPU_IDS, ""))}

    def held_instances(self) -> set[MigPlacement]:
        """Return the MIG instances that attempts of ours were given here."""
        found: set[MigPlacement] = set()
        for attempt_id in self._mains:
            with self._failures.kept("the MIG instances of attempt", attempt_id):
                record = self.record(attempt_id)
                if record is not None and record.is_over:
                    continue
                for main in self._mains_at_home(attempt_id):
                    text = main.metadata.annotations.get(names.MANIFEST, "")
                    if '"mig_device":"' in text:  # few have one, and a manifest is long
                        found |= read_instances(text)
        return found

    def sight(self, attempt_id: AttemptId) -> Sight | None:
        """Return all that is known of an attempt, None without a record."""
        record = self.record(attempt_id)
        if record is None:
            return None
        return Sight(
            record=record,
            pods=tuple(self._pods_at_home(attempt_id).values()),
            gone=frozenset(self._gone.get(attempt_id, ())),
            main=self.main(attempt_id),
            part=self._part(attempt_id),
            nodes=self._nodes,
            trouble=self._troubles.get(attempt_id, ""),
            route=self._routes.get(attempt_id, {}).get(record.namespace, ("", "")),
        )

    def take_unsettled(self) -> set[AttemptId]:
        """Return the attempts that changed since the last call, to look whether one has ended."""
        found, self._unsettled = self._unsettled, set()
        return found

    def note_vanished(self, now: int) -> None:
        """Note which services without replicas have lost their Deployment to somebody."""
        found = set()
        for attempt_id in self._records:
            with self._failures.kept("whether its workload is gone, of attempt", attempt_id):
                sight = self.sight(attempt_id)
                if sight is not None and sight.main is None and has_vanished(sight, now):
                    found.add(attempt_id)
        self._dirty |= found ^ self._vanished
        self._vanished = found

    # What is told

    def observe(self) -> list[ReplicaObservation]:
        """Return what is seen of every attempt not yet forgotten, by attempt and rank."""
        self._refresh()
        return [seen for _, (_, seen) in sorted(self._last.items(), key=lambda item: item[0])]

    def changed_since(self, cursor: str) -> tuple[str, list[ReplicaObservation]]:
        """Return a new cursor and what changed since an older one, in the order of the changes."""
        self._refresh()
        after = self._position(cursor)
        changed = sorted(
            (entry for entry in self._last.values() if entry[0] > after), key=lambda each: each[0]
        )
        return f"{self._life}:{self._number}", [seen for _, seen in changed]

    def scales_since(self, cursor: str) -> list[ScaleObservation]:
        """Return what scalers want that is new since a cursor of `changed_since`; all for none."""
        self._refresh()
        after = self._position(cursor)
        return [seen for number, seen in self._scales.values() if number > after]

    def _position(self, cursor: str) -> int:
        life, _, number = cursor.partition(":")
        return int(number) if life == self._life and number.isdigit() else 0

    def _is_at_home(self, attempt_id: AttemptId, pod: Pod) -> bool:
        """Return whether a pod lies where the pods of its attempt do, as far as that is known."""
        record = self.record(attempt_id)
        return record is None or record.namespace in ("", pod.metadata.namespace)

    def _pods_at_home(self, attempt_id: AttemptId) -> dict[str, Pod]:
        found, record = self._pods.get(attempt_id, {}), self.record(attempt_id)
        if record is None or not record.namespace:
            return found
        space = record.namespace
        return {uid: pod for uid, pod in found.items() if pod.metadata.namespace == space}

    def _mains_at_home(self, attempt_id: AttemptId) -> list[Main]:
        """Return what is the workload of an attempt; all that say so while it has no record."""
        record = self.record(attempt_id)
        found = [main for _, main in sorted(self._mains.get(attempt_id, {}).items())]
        if record is None:
            return found
        return [main for main in found if record.is_of(main.metadata.namespace, main.metadata.name)]

    def _part(self, attempt_id: AttemptId) -> Main | None:
        """Return the Job that the JobSet of an attempt made; its controller names it."""
        record = self.record(attempt_id)
        for _, part in sorted(self._parts.get(attempt_id, {}).items()):
            space, owners = part.metadata.namespace, part.metadata.owner_references
            if record is None or any(record.is_of(space, owner.name) for owner in owners):
                return part
        return None

    def _touch(self, attempt_id: AttemptId) -> None:
        self._dirty.add(attempt_id)
        self._unsettled.add(attempt_id)

    def _refresh(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for attempt_id in sorted(dirty):
            with self._failures.kept("what is seen of attempt", attempt_id):
                self._look(attempt_id)

    def _look(self, attempt_id: AttemptId) -> None:
        sight = self.sight(attempt_id)
        seen: Iterable[ReplicaObservation] = ()
        if sight is not None and sight.record.fate != FORGOTTEN:
            seen = observe(sight)
        by_rank = {each.rank: self._with_report(each) for each in seen}
        self._look_at_scale(attempt_id, sight)
        scales = sight is not None and (sight.record.most is not None or sight.record.by_pod)
        known = [
            key
            for key in (self._last if scales or not by_rank else ())
            if key[0] == attempt_id and key[1] not in by_rank
        ]
        for key in known:
            del self._last[key]
        # The slowest replica's progress is the job's, so all tell theirs when one has moved.
        moved = any(
            (before := self._last.get((attempt_id, rank))) is not None
            and before[1].progress_ratio != each.progress_ratio
            for rank, each in by_rank.items()
        )
        for rank, each in by_rank.items():
            before = self._last.get((attempt_id, rank))
            if moved or before is None or _essence(before[1]) != _essence(each):
                self._number += 1
                self._last[(attempt_id, rank)] = (self._number, each)
        if sight is None or sight.record.is_over:
            self._let_go(attempt_id)
        if not by_rank:
            self._troubles.pop(attempt_id, None)
            self._routes.pop(attempt_id, None)
            for key in [key for key in self._reports if key[0] == attempt_id]:
                del self._reports[key]

    def _look_at_scale(self, attempt_id: AttemptId, sight: Sight | None) -> None:
        is_gone = attempt_id in self._vanished
        wanted = None if sight is None else 0 if is_gone else find_wanted(sight)
        if sight is None or wanted is None:
            self._scales.pop(attempt_id, None)
            return
        before = self._scales.get(attempt_id)
        by = find_scaler(sight.main)
        seen = ScaleObservation(sight.record.ref, wanted, is_gone=is_gone, by=by)
        if before is None or before[1] != seen:
            self._number += 1
            self._scales[attempt_id] = (self._number, seen)

    def _with_report(self, seen: ReplicaObservation) -> ReplicaObservation:
        found = self._reports.get((seen.ref.attempt_id, seen.rank))
        if found is None or seen.started_at is None:
            return seen
        report, since = found
        running = seen.phase is Phase.RUNNING
        ratio, path, at = seen.progress_ratio, seen.checkpoint, seen.checkpoint_at
        if path in (None, report.checkpoint):
            path, at = report.checkpoint, since if report.checkpoint else None
        return replace(
            seen,
            progress_ratio=report.progress_ratio if ratio is None else ratio,
            checkpoint=path,
            checkpoint_at=at,
            message=seen.message or (report.complaint if running else ""),
        )

    def _let_go(self, attempt_id: AttemptId) -> None:
        """Forget pods that are gone of an attempt whose end is recorded."""
        for uid in self._gone.pop(attempt_id, set()):
            pods = self._pods.get(attempt_id, {})
            pod = pods.pop(uid, None)
            if pod is not None:
                self._on_node.get(pod.spec.node_name, set()).discard(attempt_id)
            if not pods:
                self._pods.pop(attempt_id, None)


def _key(main: Main) -> _Key:
    return main.kind, main.metadata.namespace, main.metadata.name


def _is_of_set(main: Main) -> bool:
    return any(owner.kind == "JobSet" for owner in main.metadata.owner_references)


def _gpus(text: str) -> set[GpuId]:
    return {GpuId(each) for each in text.split(",") if each}


def attempt_of(labels: dict[str, str]) -> AttemptId | None:
    """Return the attempt that an object's labels name."""
    found = names.find_id(labels, names.ATTEMPT_ID)
    return AttemptId(found) if found is not None else None


def _essence(replica: ReplicaObservation) -> ReplicaObservation:
    """Return an observation without what moves all the time."""
    return replace(replica, progress_ratio=None, cpu_ms=None)
