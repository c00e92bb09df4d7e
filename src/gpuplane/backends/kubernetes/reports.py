"""What a replica has reported in its files, as it is read off a cluster: pure."""

from dataclasses import dataclass

from gpuplane.backends.kubernetes.manifests.lastreports import LAST_REPORT, MARK
from gpuplane.backends.kubernetes.shapes import Pod
from gpuplane.core.reports import MalformedReport, last_line, parse_checkpoint, parse_progress


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica has reported in its files.

    Args:
        complaint: What was wrong with what could not be read; empty where all was well.
    """

    progress_ratio: float | None = None
    checkpoint: str | None = None
    complaint: str = ""


def read_report(text: str) -> Report:
    """Return what was read of both files as a report; what is malformed becomes its complaint."""
    progress_text, _, checkpoint_text = text.partition(f"\n{MARK}\n")
    complaints = []
    progress = checkpoint = None
    try:
        progress = parse_progress(last_line(progress_text))
    except MalformedReport as error:
        complaints.append(f"progress file: {error}")
    try:
        checkpoint = parse_checkpoint(last_line(checkpoint_text))
    except MalformedReport as error:
        complaints.append(f"checkpoints file: {error}")
    return Report(progress, checkpoint, "; ".join(complaints)[:500])


def last_report(pod: Pod) -> Report:
    """Return what the container beside a job kept of its reports; nothing where there is none."""
    for container in pod.status.init_container_statuses:
        ended = container.state.terminated
        if container.name == LAST_REPORT and ended is not None and MARK in ended.message:
            return read_report(ended.message)
    return Report()
