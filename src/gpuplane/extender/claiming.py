"""Chooses a bound pod's GPUs and writes them down, so that no two replicas give out one GPU twice.

Owns the claim on the node (written under its resourceVersion), the Binding and the pod's
annotation. Which GPUs it is follows from the state; the API server is the only referee.
"""

from collections.abc import Callable
from typing import Any

from gpuplane.core.fleet.columns import Take
from gpuplane.core.scheduling.bench import NOT_FIT
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.extender import names
from gpuplane.extender.holdings import name_devices
from gpuplane.extender.nodes import Claim, NodeRecord, read_claims, write_claims
from gpuplane.extender.pods import PodFacts, PodView, facts_of
from gpuplane.extender.protocol import BindingArgs
from gpuplane.extender.state import ClusterState
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, KubeError, NotThere
from gpuplane.kube.kinds import NODE, POD

CLAIM_MS = 60_000
"""How long a claim stands: by then every replica has seen the pod itself."""
MAX_TRIES = 8
"""Writes to a node that others changed meanwhile: a status update, or a claim of another pod."""
MAX_CLAIMS = 256
"""Claims of one node; a node has at most some hundred pods."""


class NoDevices(Exception):
    """A pod cannot get what it asks for on this node; the text says why."""


class Claimer:
    """Gives devices to pods, one at a time for each node.

    Args:
        client: Of the cluster.
        state: As its informers see it.
        now: In ms since the epoch.
        note: Counts events: `bound`, `annotated`, `conflict`, `bind_failed`.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        now: Callable[[], int],
        note: Callable[[str], None],
    ) -> None:
        self._client = client
        self._state = state
        self._now = now
        self._note = note

    async def bind(self, args: BindingArgs) -> str:
        """Bind a pod to a node with its GPUs; return why not, empty when it is bound."""
        try:
            pod = self._state.find_pod(args.PodUID) or await self._read_pod(args)
            if pod is None:
                return f"pod {args.PodNamespace}/{args.PodName} is gone"
            annotations: dict[str, str] = {}
            if pod.is_judged:
                ids = await self._claim(pod, args.Node)
                if ids:
                    annotations[names.GPU_IDS] = ",".join(ids)
            # The API server merges the annotations of a Binding into the pod in the same write.
            await self._client.create(
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {
                        "name": args.PodName,
                        "namespace": args.PodNamespace,
                        "uid": args.PodUID,
                        "annotations": annotations,
                    },
                    "target": {"apiVersion": "v1", "kind": "Node", "name": args.Node},
                },
                args.PodNamespace,
            )
        except NoDevices as error:
            self._note("bind_failed")
            return str(error)
        except KubeError as error:
            self._note("bind_failed")
            return f"the API server did not bind it: {error}"
        self._note("bound")
        return ""

    async def annotate(self, pod: PodFacts) -> bool:
        """Write the GPUs of a pod that kube-scheduler has bound; return whether it has them now.

        Raises:
            KubeError: If the cluster cannot be reached; the caller tries again.
        """
        try:
            ids = await self._claim(pod, pod.node)
            if not ids:
                return False
            await self._client.patch(
                POD,
                pod.name,
                {
                    "metadata": {
                        "uid": pod.uid,
                        "annotations": {names.GPU_IDS: ",".join(ids)},
                    }
                },
                pod.namespace,
            )
        except (NoDevices, NotThere, Conflict):
            self._note("not_annotated")
            return False
        self._note("annotated")
        return True

    async def _read_pod(self, args: BindingArgs) -> PodFacts | None:
        """Read a pod that the informer has not shown yet."""
        found, _ = await self._client.list_as(
            POD, PodView, args.PodNamespace, fields={"metadata.name": args.PodName}
        )
        facts = [facts_of(view) for view in found if view.metadata.uid == args.PodUID]
        return facts[0] if facts else None

    async def _claim(self, pod: PodFacts, node: str) -> tuple[str, ...]:
        """Choose GPUs and claim them on the node; return what they are called.

        Raises:
            NoDevices: If it does not fit there.
        """
        for _ in range(MAX_TRIES):
            record = self._state.nodes.get(node)
            if record is None:
                raise NoDevices(f"the extender has not seen node {node} yet")
            if not record.is_ours:
                return ()
            document = await self._client.get(NODE, node)
            metadata = document["metadata"]
            text = (metadata.get("annotations") or {}).get(names.CLAIMS, "")
            now = self._now()
            standing = tuple(each for each in read_claims(text) if each.expires_at > now)
            mine = next((each for each in standing if each.uid == pod.uid), None)
            if mine is not None:
                return mine.gpu_ids
            self._learn(record, standing)
            ids = name_devices(record, self._choose(pod, node))
            if not ids or len(standing) >= MAX_CLAIMS:
                return ids
            claims = (*standing, Claim(pod.uid, ids, now + CLAIM_MS))
            try:
                await self._client.patch(NODE, node, _claims_patch(metadata, claims))
            except Conflict:
                self._note("conflict")
                continue
            self._learn(record, claims)
            return ids
        raise NoDevices(f"node {node} was changed by others {MAX_TRIES} times in a row")

    def _learn(self, record: NodeRecord, claims: tuple[Claim, ...]) -> None:
        """Take in claims before the informer shows them."""
        self._state.put_claims(record.facts.name, claims)

    def _choose(self, pod: PodFacts, node: str) -> Take:
        """Return what a pod takes of a node, as the core chooses it.

        Raises:
            NoDevices: If it does not fit there.
        """
        state = self._state
        state.refresh(self._now())
        place = state.place_of[node]
        kept = state.find_kept(pod, place)
        if kept is not None:
            return kept
        with state.without(pod):
            row = state.row(pod.workload)
            row.refresh()
            if row.rank_on(place) == NOT_FIT:
                raise NoDevices(f"node {node} has no devices left for pod {pod.name}")
            return choose_devices(row, place)


def _claims_patch(metadata: dict[str, Any], claims: tuple[Claim, ...]) -> dict[str, Any]:
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {names.CLAIMS: write_claims(claims)},
        }
    }
