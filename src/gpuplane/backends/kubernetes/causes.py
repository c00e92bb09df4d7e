"""Why a pod waits and why it ended: the real reason first, in one word and one sentence.

Owns the reading of statuses. The order is that of cause before effect: a node that was lost, an
eviction or a GPU fault explains an exit code, never the other way round.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuplane.backends.kubernetes.manifests.lastreports import LAST_REPORT
from gpuplane.backends.kubernetes.manifests.workspaces import UNPACK
from gpuplane.backends.kubernetes.names import PLACEMENT_GATE, PREFIX
from gpuplane.backends.kubernetes.shapes import Condition, Container, Pod
from gpuplane.core.reasons import Word

XID = f"{PREFIX}xid"
"""Annotation of a pod or node: the last XID that the node's agent saw for it."""

_DISRUPTIONS = {
    "DeletionByTaintManager": Word.NODE_LOST,
    "DeletionByPodGC": Word.NODE_LOST,
    "EvictionByEvictionAPI": Word.DRAINED,
    "PreemptionByScheduler": Word.EVICTED,
    "TerminationByKubelet": Word.EVICTED,
}
"""Reasons of the condition DisruptionTarget. Source: Kubernetes, "Disruptions"."""

_CANNOT_START = frozenset(
    {
        "ContainerCannotRun",
        "StartError",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "InvalidImageName",
    }
)

_POD_WORDS = {
    "Evicted": Word.EVICTED,
    "NodeLost": Word.NODE_LOST,
    "DeadlineExceeded": Word.TIMED_OUT,
    "UnexpectedAdmissionError": Word.START_FAILED,
    "NodeShutdown": Word.DRAINED,
    "Terminated": Word.DRAINED,
    "Shutdown": Word.DRAINED,
    "OutOfcpu": Word.START_FAILED,
    "OutOfmemory": Word.START_FAILED,
}
"""Reasons of a whole pod's failure, as kubelets write them."""

_GPU_TROUBLE = re.compile(r"xid|gpu", re.IGNORECASE)
_MESSAGE_LIMIT = 1_000
_LINE_LIMIT = 200
"""Characters of the last line of output in a sentence: the rest is in the log."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something ended."""

    word: Word
    message: str
    exit_code: int | None = None
    signal: int | None = None


def why_waiting(pod: Pod) -> str:
    """Return why a pod does not run yet, in the cluster's own words; empty when it is starting."""
    containers = [*pod.status.init_container_statuses, *([pod.main] if pod.main else ())]
    for container in containers:
        waiting = container.state.waiting
        if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
            continue
        return _sentence(waiting.reason, waiting.message)
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return _sentence(condition.reason or "Unschedulable", condition.message)
    if any(gate.name == PLACEMENT_GATE for gate in pod.spec.scheduling_gates):
        return "SchedulingGated: it waits to be told its node"
    return ""


def why_unready(container: Container) -> str:
    """Return which probe of a container that runs does not succeed; empty when it is ready.

    What the probe found is an event of the kubelet's, which the pod does not show.
    """
    if container.ready:
        return ""
    if container.started is False:
        return "its startup probe has not succeeded yet"
    return "its readiness probe fails"


def why_ended(
    pod: Pod, node_conditions: Sequence[Condition], node_annotations: Mapping[str, str]
) -> Cause:
    """Return why a pod ended.

    Args:
        node_conditions: Conditions of its node, empty where the node is gone.
        node_annotations: The same for its annotations.
    """
    code, signal = _exit_of(pod.main)
    word = _POD_WORDS.get(pod.status.reason)
    if word is not None:
        return Cause(word, _sentence(pod.status.reason, pod.status.message), code, signal)
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            word = _DISRUPTIONS.get(condition.reason, Word.EVICTED)
            return Cause(word, _sentence(condition.reason, condition.message), code, signal)
    if code != 0:
        trouble = _gpu_trouble(pod, node_conditions, node_annotations)
        if trouble:
            return Cause(Word.GPU_FAILED, trouble, code, signal)
    return _of_container(pod, code, signal)


def _of_container(pod: Pod, code: int | None, signal: int | None) -> Cause:
    container = pod.main
    ended = container.state.terminated if container is not None else None
    if ended is None:
        if pod.status.phase == "Succeeded":
            return Cause(Word.COMPLETED, "", 0)
        before = _failed_before(pod)
        if before:
            return Cause(Word.START_FAILED, before)
        text = _sentence(pod.status.reason or "Failed", pod.status.message)
        return Cause(Word.START_FAILED, text)
    if ended.reason == "OOMKilled":
        text = "OOMKilled: it used more memory than it asked for"
        return Cause(Word.OUT_OF_MEMORY, text, code, signal)
    if ended.reason in _CANNOT_START:
        return Cause(Word.START_FAILED, _sentence(ended.reason, ended.message), code, signal)
    if code == 0:
        return Cause(Word.COMPLETED, "", 0)
    if signal is not None:
        text = _with_detail(f"was ended by signal {signal}", ended.message)
        return Cause(Word.SIGNALLED, text, code, signal)
    return Cause(Word.NON_ZERO_EXIT, _with_detail(f"exited with code {code}", ended.message), code)


def _failed_before(pod: Pod) -> str:
    """Return how what comes before the job's container failed, empty where it did not."""
    for container in pod.status.init_container_statuses:
        if container.name == LAST_REPORT:
            continue
        for state in (container.state, container.last_state):
            ended = state.terminated
            if ended is not None and ended.exit_code:
                what = "unpacking the working directory" if container.name == UNPACK else "it"
                text = f"{container.name}: {what} ended with code {ended.exit_code}"
                return _with_detail(text, ended.message or ended.reason)
    return ""


def _exit_of(container: Container | None) -> tuple[int | None, int | None]:
    """Return (exit code, signal): a shell's 128 + n is a signal, as runtimes write it too."""
    ended = container.state.terminated if container is not None else None
    if ended is None:
        return None, None
    if ended.signal:
        return 128 + ended.signal, ended.signal
    code = ended.exit_code
    return code, code - 128 if 128 < code <= 128 + 64 else None


def _gpu_trouble(pod: Pod, conditions: Sequence[Condition], annotations: Mapping[str, str]) -> str:
    for source in (pod.metadata.annotations, annotations):
        if XID in source:
            return f"XID {source[XID]} on its node"[:_MESSAGE_LIMIT]
    for condition in conditions:
        if condition.status == "True" and _GPU_TROUBLE.search(condition.type):
            return _sentence(condition.reason or condition.type, condition.message)
    return ""


def _sentence(reason: str, message: str) -> str:
    text = f"{reason}: {message}" if reason and message else reason or message
    return text[:_MESSAGE_LIMIT]


def _with_detail(text: str, detail: str) -> str:
    """Return a sentence with the last line of what a container said.

    Where it wrote no message of its own, kubelets take the end of its log for one: up to 80 lines.
    """
    last = next((line for line in reversed(detail.splitlines()) if line.strip()), "").strip()
    if len(last) > _LINE_LIMIT:
        last = f"{last[: _LINE_LIMIT - 1]}…"
    return f"{text}: {last}" if last else text
