"""A container beside a job that keeps what it reported last, for when the job itself has ended.

Progress and checkpoints lie in a volume of the pod, which nobody can read once the job's container
is over. This one outlives it by a moment: the kubelet ends it after the job's own container, and
what it then reads of the files is its termination message, which stays in the pod's status. It
asks for nothing and writes nowhere else.

Source: Kubernetes, "Sidecar Containers" (on by default since 1.29, the oldest that is supported).
"""

from pathlib import PurePosixPath
from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes.manifests.volumes import REPORT_FOLDER, REPORTS, reports
from gpuplane.backends.kubernetes.settings import KubernetesSettings

LAST_REPORT = "last-report"
"""The name of the container."""
MARK = "--gpuplane--"
"""Between what the two files hold, in everything that is read of them."""
MESSAGE_PATH = "/dev/termination-log"
TAIL_BYTES = 1_900
"""Of each file: both and the mark fit the 4,096 bytes of a termination message."""
LOOK_S = 2
"""How old at most is what a container leaves that is killed without a word, by lack of grace."""
OFF = "none"
SHELLS = frozenset({"sh", "bash", "dash", "ash"})
_MEMORY = "32Mi"

_SCRIPT = f"""
keep() {{
  [ -s "$1" ] || [ -s "$2" ] || return 0
  now=$(tail -c {TAIL_BYTES} "$1" 2>/dev/null; echo; echo {MARK};
        tail -c {TAIL_BYTES} "$2" 2>/dev/null; echo .)
  [ "$now" = "$kept" ] || printf %s "${{now%.}}" > {MESSAGE_PATH}
  kept=$now
}}
trap 'keep "$1" "$2"; kill $! 2>/dev/null; exit 0' TERM INT
while :; do keep "$1" "$2"; sleep {LOOK_S} & wait $!; done
"""


def keeper_image(plan: AttemptPlan, settings: KubernetesSettings, *, unpacks: bool) -> str:
    """Return the image in which last reports are kept; empty where they are not.

    The job's own is taken only where a shell is known to be in it: without one the container
    would never start, nor would the job.

    Args:
        unpacks: Whether a working directory is unpacked in the job's image, which takes a shell.
    """
    if not reports(plan) or settings.report_image == OFF:
        return ""
    if settings.report_image:
        return settings.report_image
    own = plan.execution.image or settings.default_image
    return own if unpacks or _shell_of(plan) else ""


def keep_last_report(template: dict[str, Any], plan: AttemptPlan, image: str) -> None:
    """Have a pod template keep the last report of its job in this image."""
    [container] = template["spec"]["containers"]
    shell = _shell_of(plan) if image == container["image"] else ""
    template["spec"].setdefault("initContainers", []).append(
        {
            "name": LAST_REPORT,
            "image": image,
            "restartPolicy": "Always",  # what makes it outlive the job's own container
            "command": [
                shell or "/bin/sh", "-c", _SCRIPT, LAST_REPORT,
                f"{REPORT_FOLDER}/progress", f"{REPORT_FOLDER}/checkpoints",
            ],
            # Images made for GPUs ask for all of them unless told otherwise.
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            # Nothing, said aloud: defaults of the namespace would be added to what the job asks.
            "resources": {
                "requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": _MEMORY},
            },
            "securityContext": container["securityContext"],
            "terminationMessagePath": MESSAGE_PATH,
            "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": REPORTS, "mountPath": REPORT_FOLDER, "readOnly": True}],
        }
    )  # fmt: skip


def _shell_of(plan: AttemptPlan) -> str:
    """Return the shell that a job's command begins with, empty where it begins with none."""
    first = plan.execution.command[0] if plan.execution.command else ""
    return first if PurePosixPath(first).name in SHELLS else ""
