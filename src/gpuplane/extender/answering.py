"""Answers filter, prioritize and preempt from the state of the cluster; does no I/O.

Owns how a decision of the core becomes the protocol's answer. Equal clusters, questions and times
give equal bytes, whichever replica answers.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from gpuplane.core.fleet.columns import Bools
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.bench import NOT_FIT
from gpuplane.extender.naming import Candidates, NameIndex, look_up
from gpuplane.extender.nodes import Topologies, read_record
from gpuplane.extender.pods import BadPod, PodFacts, PodView, facts_of
from gpuplane.extender.protocol import BadBody, PreemptionArgs, Reader, is_split, split
from gpuplane.extender.rendering import MOST_POINTS, Buffer, NodeBytes, Rendered, encode
from gpuplane.extender.state import ClusterState

MAX_KEPT_LISTS = 16
"""Lists of candidates, and pods, remembered: the list that `filter` answers with is asked about
again by `prioritize` a moment later, in the same bytes. Each scheduler has one question at a time;
more lists than these would only push each other out of the processor's cache."""
MAX_LIST_BYTES = 1 << 19
"""Longer lists are read each time: bounds what is remembered to 8 MiB."""
MAX_POD_BYTES = 1 << 16
"""Longer pods are read each time."""
MIN_CLASSES = 16
MAX_CELLS = 600_000
"""Nodes times classes of which is kept why they are refused: a byte each, and at least
`MIN_CLASSES` classes."""
_NULL = b"null"
_NO_NAMES = b'{"Nodes":null,"NodeNames":'
_FAILED = b',"FailedNodes":{'
_LASTING = b'},"FailedAndUnresolvableNodes":{'
_END = b'},"Error":""}'
_ALL_FIT = _FAILED + _LASTING + _END


class Answerer:
    """Turns questions into answers.

    Args:
        state: The cluster; it is told what changes by whoever watches it.
        now: The time in ms since the epoch.
        refused: Called with the word and the number of nodes that it keeps a pod from.
    """

    def __init__(
        self,
        state: ClusterState,
        now: Callable[[], int],
        refused: Callable[[str, int], None] = lambda word, count: None,
    ) -> None:
        self.state = state
        self._now = now
        self._refused = refused
        self._read = Reader()
        self._views = _Views(state)
        self._asked: dict[bytes, PodFacts | None] = {}
        self._latest: tuple[bytes, PodFacts | None] | None = None
        self._given: _Views | None = None
        self._versions: dict[str, str] = {}
        self._topologies = Topologies()

    def put_pod(self, pod: PodFacts) -> None:
        """Take in a pod as it is now."""
        self.state.put_pod(pod)
        if self._given is not None:
            self._given.state.put_pod(pod)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod."""
        self.state.drop_pod(uid)
        if self._given is not None:
            self._given.state.drop_pod(uid)

    def _ask(self, body: bytes) -> tuple[PodFacts | None, bytes, bytes]:
        """Return the pod, whole nodes and node names of a question.

        `prioritize` asks about the pod of the `filter` a moment before, in the same bytes.
        """
        latest = self._latest
        if latest is not None and is_split(body, latest[0]):
            return latest[1], _NULL, body[len(latest[0]) - 1 : -1]
        parts = split(body)
        if parts is not None:
            raw, names = parts
            if raw in self._asked:
                pod = self._asked[raw]
                self._latest = (body[: -len(names)], pod)
                return pod, _NULL, names
            try:
                pod = _pod_of(self._read.pod(raw))
            except BadBody:
                pass
            else:
                if len(raw) <= MAX_POD_BYTES:
                    self._remember(raw, pod)
                    self._latest = (body[: -len(names)], pod)
                return pod, _NULL, names
        # Read as a whole it is an error with the field's name, or something written otherwise.
        args = self._read.args(body)
        return _pod_of(args.pod), args.nodes, args.names

    def _remember(self, raw: bytes, pod: PodFacts | None) -> None:
        if len(self._asked) >= MAX_KEPT_LISTS:
            del self._asked[next(iter(self._asked))]
        self._asked[raw] = pod

    # The three questions.

    def filter(self, body: bytes) -> bytes:
        """Answer `filter`.

        Raises:
            BadBody: If the body is not what the protocol says.
        """
        pod, nodes, raw = self._ask(body)
        if raw == _NULL:
            return self._filter_given(nodes, pod)
        view = self._views
        if pod is None or not pod.is_judged:
            self._read.names(raw)
            return _NO_NAMES + raw + _ALL_FIT
        if pod.wrong:
            lasting = self._refuse(pod, self._read.names(raw))
            return b"".join((_NO_NAMES, b"[]", _FAILED, _LASTING, lasting, _END))
        view.state.refresh(self._now())
        candidates = view.candidates(raw, self._read)
        listed, failed, lasting = self._judge(view, pod, candidates)
        if listed is None:
            return _NO_NAMES + raw + _ALL_FIT
        return b"".join((_NO_NAMES, listed, _FAILED, failed, _LASTING, lasting, _END))

    def _refuse(self, pod: PodFacts, names: list[str]) -> bytes:
        """Return why a pod whose annotations cannot be read goes to no node, by node, as JSON."""
        self._refused(Word.UNREADABLE.value, len(names))
        said = encode(f"{Word.UNREADABLE.value}: {pod.wrong}")
        return b",".join(encode(name) + b":" + said for name in names)

    def prioritize(self, body: bytes) -> bytes:
        """Answer `prioritize`.

        Raises:
            BadBody: If the body is not what the protocol says.
        """
        pod, nodes, raw = self._ask(body)
        if raw == _NULL:
            view = self._view_given()
            names = [self._take_in(view, each) for each in self._read.nodes(_nodes_of(nodes))]
            view.state.refresh(self._now())
            candidates = look_up(names, view.state.place_of)
        else:
            view = self._views
            view.state.refresh(self._now())
            candidates = view.candidates(raw, self._read)
        zero = [b'{"Host":%b,"Score":0}' % encode(name) for name in candidates.unknown]
        known = self._score(view, pod, candidates)
        between = b"," if known and zero else b""
        return b"".join((b"[", *known, between, b",".join(zero), b"]"))

    def preempt(self, body: bytes) -> bytes:
        """Answer `preempt`: the nodes where the pod fits once those victims are gone.

        Raises:
            BadBody: If the body is not what the protocol says.
        """
        args = self._read.preemption(body)
        pod = _pod_of(args.Pod)
        victims = _victims_of(args)
        self.state.refresh(self._now())
        kept = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
            for node, (uids, violations) in victims.items()
            if pod is None or not pod.is_judged or self._would_fit(pod, node, uids)
        }
        return encode({"NodeNameToMetaVictims": kept})

    def _would_fit(self, pod: PodFacts, node: str, victims: list[str]) -> bool:
        """Tell whether a pod fits a node without its victims; a gang stops nobody piecemeal."""
        state = self.state
        place, record = state.place_of.get(node), state.nodes.get(node)
        if pod.gang or pod.wrong or place is None or record is None:
            return False
        if not record.is_ours:
            return True
        row = state.row(pod.workload)
        mark = state.fleet.checkpoint()
        for take in state.list_takes(node, victims):
            state.fleet.release(take)
        fits = row.rank_on(place) != NOT_FIT
        state.fleet.rollback(mark)
        row.refresh()
        return fits

    # Whole nodes in the question.

    def _view_given(self) -> "_Views":
        """Return the view whose nodes come with the questions; its pods are the known ones."""
        if self._given is None:
            self._given = _Views(self.state.with_pods_only())
        return self._given

    def _take_in(self, view: "_Views", raw: msgspec.Raw) -> str:
        """Take in a node as it came, and return its name."""
        version = self._read.name_of(raw)
        if not version.resource_version or self._versions.get(version.name) != (
            version.resource_version
        ):
            document = msgspec.json.decode(raw)
            now = self._now()
            try:
                record = read_record(
                    document,
                    lambda name, text, count: self._topologies.find(name, text, count, now),
                )
            except (ValueError, TypeError, AttributeError) as error:
                raise BadBody(f"Nodes: {version.name}: {error}") from error
            view.state.put_node(record)
            self._versions[version.name] = version.resource_version
        return version.name

    def _filter_given(self, nodes: bytes, pod: PodFacts | None) -> bytes:
        raws = self._read.nodes(_nodes_of(nodes))
        view = self._view_given()
        by_name = {self._take_in(view, raw): bytes(raw) for raw in raws}
        failed = lasting = b""
        kept = list(by_name.values())
        if pod is not None and pod.is_judged and pod.wrong:
            kept, lasting = [], self._refuse(pod, list(by_name))
        elif pod is not None and pod.is_judged:
            view.state.refresh(self._now())
            candidates = look_up(list(by_name), view.state.place_of)
            listed, failed, lasting = self._judge(view, pod, candidates)
            if listed is not None:
                kept = [by_name[name] for name in self._read.names(listed)]
        return b"".join(
            (
                b'{"Nodes":{"metadata":{},"items":[',
                b",".join(kept),
                b']},"NodeNames":null',
                _FAILED,
                failed,
                _LASTING,
                lasting,
                _END,
            )
        )

    # The decision.

    def _judge(
        self, view: "_Views", pod: PodFacts, candidates: Candidates
    ) -> tuple[bytes | None, bytes, bytes]:
        """Return (the list of names that fit or None for all, failed, failed for good) as JSON."""
        state = view.state
        rendered = view.rendered(pod)
        wanted, reason = _gang_places(state, pod)
        if reason:
            self._refused(Word.GANG.value, len(candidates))
            names = [*candidates.pick(view.texts.quoted), *map(encode, candidates.unknown)]
            said = encode(reason)
            return b"[]", b"", b",".join(name + b":" + said for name in names)
        if wanted is not None:
            return self._judge_gang(pod, candidates, wanted, view.texts)
        column = candidates.column
        is_outside = rendered.find_outside(column)
        if not candidates.unknown and not is_outside.any():
            return None, b"", b""
        outside = column[is_outside]
        fitting = Candidates(column[~is_outside])
        failed, lasting, counts = rendered.refusals(outside)
        for word, count in counts:
            self._refused(word.value, count)
        if candidates.unknown:
            said = encode(f"{Word.NOT_READY.value}: the extender has not seen this node yet")
            new = b",".join(encode(name) + b":" + said for name in candidates.unknown)
            failed = new if not failed else failed + b"," + new
        if not len(fitting):
            return b"[]", failed, lasting
        listed = view.texts.write_list(fitting)
        view.remember(listed, fitting)
        return listed, failed, lasting

    def _judge_gang(
        self, pod: PodFacts, candidates: Candidates, wanted: list[int], texts: NodeBytes
    ) -> tuple[bytes, bytes, bytes]:
        places = set(wanted)
        quoted = candidates.pick(texts.quoted)
        pairs = list(zip(candidates.column.tolist(), quoted, strict=True))
        fitting = [name for place, name in pairs if place in places]
        there = texts.names[wanted[0]]
        said = encode(f"{Word.GANG.value}: its place in gang {pod.gang} is on {there}")
        lasting = [name + b":" + said for place, name in pairs if place not in places]
        return b"[" + b",".join(fitting) + b"]", b"", b",".join(lasting)

    def _score(
        self, view: "_Views", pod: PodFacts | None, candidates: Candidates
    ) -> tuple[Buffer, ...]:
        """Return the points of the candidates that are known, as JSON without brackets."""
        texts = view.texts
        if pod is None or not pod.is_judged:
            return texts.write_scores(candidates)
        rendered = view.rendered(pod)
        column = candidates.column
        wanted, _ = _gang_places(view.state, pod)
        if wanted is not None:
            points = np.isin(column, wanted).astype(np.uint8) * np.uint8(MOST_POINTS // 2)
            return texts.write_scores(candidates, points, candidates.find(wanted[0]))
        found = rendered.row.find_best()
        best = None
        if found is not None and len(column):
            best = candidates.find(found[0])
            if best is None:
                best = _best_of(rendered, candidates)
        return texts.write_scores(candidates, rendered.list_points(column), best)


class _Views:
    """A state with the bytes that were made of it, for as long as its columns stand."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._generation = -1
        self.texts = NodeBytes([])
        self._names = NameIndex([])
        self._classes: dict[int, Rendered] = {}
        self._lists: dict[tuple[int, bytes, bytes], tuple[bytes, Candidates]] = {}
        self._is_neutral: Bools | None = None

    def _begin(self) -> None:
        state = self.state
        if self._generation == state.generation:
            return
        self._generation = state.generation
        names = [node.name for node in state.fleet.nodes]
        if names != self.texts.names:
            self.texts = NodeBytes(names)
            self._names = NameIndex(names)
        self._classes.clear()
        self._lists.clear()
        is_neutral = np.array([not state.nodes[name].is_ours for name in state.place_of], np.bool_)
        self._is_neutral = is_neutral if is_neutral.any() else None

    def candidates(self, raw: bytes, read: Reader) -> Candidates:
        """Return the nodes of a question."""
        self._begin()
        key = _key_of(raw)
        kept = self._lists.get(key)
        if kept is not None and kept[0] == raw:
            # The list that was asked with longest ago goes first.
            del self._lists[key]
            self._lists[key] = kept
            return kept[1]
        found = self._names.find(raw)
        if found is None:
            found = look_up(read.names(raw), self.state.place_of)
        self._keep(raw, found)
        return found

    def remember(self, listed: bytes, candidates: Candidates) -> None:
        """Expect the nodes that fit to be asked about next."""
        self._keep(listed, candidates)

    def _keep(self, raw: bytes, candidates: Candidates) -> None:
        if len(raw) > MAX_LIST_BYTES:
            return
        if len(self._lists) >= MAX_KEPT_LISTS:
            del self._lists[next(iter(self._lists))]
        self._lists[_key_of(raw)] = (raw, candidates)

    def rendered(self, pod: PodFacts) -> Rendered:
        """Return a class's bytes, up to date."""
        self._begin()
        row = self.state.row(pod.workload)
        found = self._classes.get(id(row))
        if found is None:
            most = max(MIN_CLASSES, MAX_CELLS // max(1, len(self.texts.names)))
            if len(self._classes) >= most:
                del self._classes[next(iter(self._classes))]
            found = Rendered(row, self.texts, self._is_neutral)
            self._classes[id(row)] = found
        else:
            found.refresh()
        return found


def _key_of(raw: bytes) -> tuple[int, bytes, bytes]:
    """Return enough of a list to find it again: hashing all of it takes longer than comparing."""
    return len(raw), raw[:128], raw[-128:]


def _pod_of(view: PodView) -> PodFacts | None:
    try:
        return facts_of(view)
    except BadPod as error:
        raise BadBody(f"Pod: {error}") from error


def _nodes_of(nodes: bytes) -> bytes:
    if nodes == _NULL:
        raise BadBody("Nodes and NodeNames are both missing")
    return nodes


def _victims_of(args: PreemptionArgs) -> dict[str, tuple[list[str], int]]:
    if args.NodeNameToMetaVictims is not None:
        return {
            node: ([pod.UID for pod in each.Pods or ()], each.NumPDBViolations)
            for node, each in args.NodeNameToMetaVictims.items()
        }
    return {
        node: ([pod.metadata.uid for pod in each.Pods or ()], each.NumPDBViolations)
        for node, each in (args.NodeNameToVictims or {}).items()
    }


def _gang_places(state: ClusterState, pod: PodFacts) -> tuple[list[int] | None, str]:
    """Return (where the pod may go, its own place first, or None for anywhere; why it is held)."""
    if not pod.gang:
        return None, ""
    plan = state.plans.get(pod.gang)
    known = state.find_pod(pod.uid)
    if plan is None or known is None:
        return None, f"{Word.GANG.value}: gang {pod.gang} is not seen whole yet"
    if plan.reason:
        return None, plan.reason
    own = plan.places.get(pod.uid)
    if own is None:
        return None, ""
    alike = [
        take.node
        for uid, take in plan.places.items()
        if (other := state.find_pod(uid)) is not None and other.workload is known.workload
    ]
    return list(dict.fromkeys([own.node, *alike])), ""


def _best_of(rendered: Rendered, candidates: Candidates) -> int | None:
    """Return the position of the best candidate where the best node of all is none."""
    where = candidates.column
    ranks = rendered.row.ranks[where]
    top = ranks.max()
    if top == NOT_FIT:
        return None
    best = np.flatnonzero(ranks == top)
    return int(best[where[best].argmin()])
