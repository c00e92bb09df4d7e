"""Which bound pods wait for this extender to write down their GPUs.

Owns the line between pods that ran before anybody looked and pods bound since. It is drawn by what
the informer showed when, never by clocks: the API server tells instants in whole seconds of its own
clock, which agree with nobody else's.
"""

from collections.abc import Collection

from gpuplane.extender.pods import PodFacts


class Newcomers:
    """The pods of one cluster that somebody else binds.

    Args:
        schedulers: Whose pods are served; empty for everybody's.
    """

    def __init__(self, schedulers: Collection[str] = ()) -> None:
        self._schedulers = frozenset(schedulers)
        self._before: set[str] = set()

    def put(self, pod: PodFacts, old: PodFacts | None, *, in_first_list: bool) -> None:
        """Take in a pod as it is now.

        Args:
            pod: As it is.
            old: As it was before, None where it was not known.
            in_first_list: Whether the cluster has not been read whole yet.
        """
        is_new = old is None or old.uid != pod.uid
        if in_first_list and is_new and pod.node and not pod.is_starting:
            self._before.add(pod.uid)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        self._before.discard(uid)

    def needs_devices(self, pod: PodFacts) -> bool:
        """Return whether the pod's GPUs are to be chosen and written down."""
        return bool(
            pod.node
            and pod.is_judged
            and not pod.gpu_ids
            # What ran before has its GPUs already, and nobody told us which.
            and pod.uid not in self._before
            and (not self._schedulers or pod.scheduler in self._schedulers)
        )
