"""What is asked of a job, as far as class and prediction look at it, and the words in it.

Owns the facts of a request; never the job's state and never a value of its environment.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.core.workloads import JobSpec, JobType

CLASS_LABEL = "gpuplane.io/workload-class"
"""The label by which a user says the class; it outweighs everything else."""

MAX_TEXT = 4_000
"""Characters of a command that are read: what names the work stands at its beginning."""

_SHELLS = frozenset({"bash", "sh", "zsh", "fish", "python", "python3", "ipython"})
_WAITS = ("sleep infinity", "tail -f /dev/null")
_WORD = re.compile(r"[a-z0-9]+")
_SEPARATOR = re.compile(r"[^a-z0-9]+")
_HEX = re.compile(r"(?=.*[0-9])(?=.*[a-f])[0-9a-f]{6,}")
_TAIL = re.compile(r"(?<=[a-z])[0-9]+$")


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a job asks, as far as it tells what kind of work it is.

    Args:
        tenant, project, user: Stable ids as text.
        simulated: It runs on a simulated cluster, whose durations are made up: it learns from and
            teaches only its like.
        stem: The name without what changes from run to run.
        words: Those words of command, image and name that a rule may look at.
        idle_command: With what the command waits for somebody, a bare shell or a sleep; empty
            when it does something.
        model: Canonical GPU model asked for, or empty for any.
        gpu_count: GPUs of all replicas together.
        gpu_milli: Share of each GPU.
        is_array: It is one of many that differ in a number only.
        said_class: What the label `CLASS_LABEL` says, or empty.
    """

    tenant: str
    project: str
    user: str
    simulated: bool
    stem: str
    job_type: JobType
    words: frozenset[str]
    idle_command: str = ""
    model: str = ""
    gpu_count: int = 0
    gpu_milli: int = 1000
    replicas: int = 1
    gang: bool = True
    is_array: bool = False
    has_port: bool = False
    has_health: bool = False
    writes_checkpoints: bool = False
    has_deadline: bool = False
    estimated_duration_s: int | None = None
    said_class: str = ""


def facts_of(
    spec: JobSpec,
    *,
    tenant: str,
    project: str,
    user: str,
    simulated: bool,
    is_array: bool,
    labels: dict[str, str],
    known_words: frozenset[str],
) -> RequestFacts:
    """Return the facts of a specification and of who asks.

    Only words that are known are kept (`classes.KNOWN_WORDS`), and no numbers: so jobs that are
    asked again and again have equal facts, and are predicted once.
    """
    run, asked = spec.execution, spec.resources
    return RequestFacts(
        tenant=tenant,
        project=project,
        user=user,
        simulated=simulated,
        stem=stem_of(spec.name),
        job_type=spec.job_type,
        words=words_of((spec.name, run.image, " ".join(run.command))) & known_words,
        idle_command=find_idle_command(run.command),
        model=asked.gpu_model or "",
        gpu_count=asked.gpu_count * spec.replicas.count,
        gpu_milli=asked.gpu_milli,
        replicas=spec.replicas.count,
        gang=spec.replicas.gang,
        is_array=is_array,
        has_port=run.port is not None,
        has_health=run.health is not None,
        writes_checkpoints=spec.checkpoint is not None and spec.checkpoint.enabled,
        has_deadline=spec.deadline is not None,
        estimated_duration_s=spec.estimated_duration_s,
        said_class=labels.get(CLASS_LABEL, ""),
    )


def words_of(texts: Sequence[str]) -> frozenset[str]:
    """Return the words of some texts, and every two neighbours joined by `-`.

    The joined ones tell `fine-tune` from `fine` and `tune`, and `torch.distributed` from `torch`.
    """
    found: set[str] = set()
    left = MAX_TEXT
    for text in texts:
        words = _WORD.findall(text[:left].lower())
        found.update(words)
        found.update(f"{first}-{second}" for first, second in itertools.pairwise(words))
        left -= min(left, len(text))
    return frozenset(found)


def find_idle_command(command: Sequence[str]) -> str:
    """Return with what a command waits for a person who will type; empty when it does something."""
    text = " ".join(command)[:MAX_TEXT]
    waits = next((each for each in _WAITS if each in text), "")
    is_bare = len(command) == 1 and text.rpartition("/")[2] in _SHELLS
    return waits or (text if is_bare else "")


def stem_of(name: str) -> str:
    """Return a name without what changes from run to run: numbers, dates, hashes, seeds.

    `train-llama-7b-2026-11-20-seed3` and `train-llama-7b-2026-11-21-seed4` are the same work.
    """
    kept = []
    for part in _SEPARATOR.split(name.lower()):
        if not part or part.isdigit() or _HEX.fullmatch(part):
            continue
        kept.append(_TAIL.sub("", part))
    return "-".join(kept) or name.lower()
