"""The six classes of work, how sure we are of one, and the class of a job with its reasons.

Owns the rules; each is one function of (facts, past) that gives points to a class and says why in
a sentence. The class with the most points wins, equal ones in the order of `WorkloadClass`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.prediction.requests import CLASS_LABEL, RequestFacts
from gpuplane.core.workloads import JobType

HOUR_S = 3600
_SURE = 4
_LIKELY = 2


class WorkloadClass(StrEnum):
    """What kind of work a job is, as far as placement and prediction treat it differently."""

    TRAINING = "training"
    FINE_TUNING = "fine-tuning"
    BATCH_INFERENCE = "batch-inference"
    SERVING = "serving"
    INTERACTIVE = "interactive"
    HPO_TRIAL = "hpo-trial"


class Confidence(StrEnum):
    """How far a class is ahead of the next one."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of the same work were like; of no runs nothing is said.

    Args:
        runs: Earlier runs that ended by themselves.
        median_s: Median duration of earlier runs in seconds, or None.
        utilization_permille: Median of their mean GPU utilisation in thousandths, or None.
        stopped_by_hand: Runs that a user stopped rather than let end.
    """

    runs: int = 0
    median_s: int | None = None
    utilization_permille: int | None = None
    stopped_by_hand: int = 0


NO_PAST = Past()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Points for a class, and the sentence that says why."""

    workload_class: WorkloadClass
    points: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a job.

    Args:
        evidence: All that spoke for any class, most points first.
    """

    workload_class: WorkloadClass
    confidence: Confidence
    evidence: tuple[Evidence, ...]


Rule = Callable[[RequestFacts, Past], Evidence | None]


def classify(facts: RequestFacts, past: Past = NO_PAST) -> Classification:
    """Return the class of a job from what is asked and how earlier runs of it were."""
    found = [evidence for rule in RULES if (evidence := rule(facts, past)) is not None]
    points = dict.fromkeys(WorkloadClass, 0)
    for each in found:
        points[each.workload_class] += each.points
    order = {kind: place for place, kind in enumerate(WorkloadClass)}
    ranked = sorted(points, key=lambda kind: (-points[kind], order[kind]))
    lead = points[ranked[0]] - points[ranked[1]]
    confidence = Confidence.LOW
    if lead >= _SURE:
        confidence = Confidence.HIGH
    elif lead >= _LIKELY:
        confidence = Confidence.MEDIUM
    found.sort(key=lambda each: (-each.points, order[each.workload_class], each.sentence))
    return Classification(ranked[0], confidence, tuple(found))


# Words are lower case; two that belong together are joined by `-`, as `words_of` gives them.
_WORDS: dict[WorkloadClass, tuple[int, frozenset[str]]] = {
    WorkloadClass.TRAINING: (
        3,
        frozenset(
            "train training trainer pretrain pretraining torchrun deepspeed horovodrun megatron "
            "torch-distributed accelerate-launch composer nemo".split()
        ),
    ),
    WorkloadClass.FINE_TUNING: (
        5,
        frozenset(
            "finetune finetuning fine-tune fine-tuning lora qlora peft sft dpo rlhf axolotl "
            "unsloth torchtune".split()
        ),
    ),
    WorkloadClass.BATCH_INFERENCE: (
        4,
        frozenset(
            "infer inference predict prediction embed embeddings transcribe score scoring "
            "batch-generate offline-inference evaluate evaluation eval".split()
        ),
    ),
    WorkloadClass.SERVING: (
        4,
        frozenset(
            "serve serving vllm sglang tritonserver triton-server text-generation ollama "
            "uvicorn gunicorn torchserve llama-server api-server".split()
        ),
    ),
    WorkloadClass.INTERACTIVE: (
        8,
        frozenset(
            "jupyter jupyterlab jupyterhub notebook ipython code-server vscode sshd "
            "streamlit gradio rstudio".split()
        ),
    ),
    WorkloadClass.HPO_TRIAL: (
        6,
        frozenset(
            "sweep trial trials hpo optuna hyperopt katib ray-tune tune-run wandb-agent nni "
            "nnictl grid-search hyperparameter".split()
        ),
    ),
}

KNOWN_WORDS: frozenset[str] = frozenset().union(*(words for _, words in _WORDS.values()))
"""Every word that a rule looks at."""


def says_label(facts: RequestFacts, _: Past) -> Evidence | None:
    """Believe the user's own label."""
    said = facts.said_class
    if said not in list(WorkloadClass):
        return None
    return Evidence(WorkloadClass(said), 100, f"Its label {CLASS_LABEL} says {said}.")


def _says_words(kind: WorkloadClass) -> Rule:
    points, words = _WORDS[kind]

    def rule(facts: RequestFacts, _: Past) -> Evidence | None:
        found = sorted(facts.words & words)
        if not found:
            return None
        named = " and ".join(found[:2])
        return Evidence(kind, points, f"Its command, image or name says {named}.")

    return rule


def says_type(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take the job type for what it most often is."""
    kind, points = {
        JobType.SERVICE: (WorkloadClass.SERVING, 3),
        JobType.TRAINING: (WorkloadClass.TRAINING, 3),
        JobType.BATCH: (WorkloadClass.BATCH_INFERENCE, 1),
    }[facts.job_type]
    return Evidence(kind, points, f"Its type is {facts.job_type.value}.")


def listens_on_a_port(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take what listens for requests for serving."""
    if not (facts.has_port or facts.has_health):
        return None
    what = "is checked for health" if facts.has_health else "listens on a port"
    return Evidence(WorkloadClass.SERVING, 2, f"It {what}.")


def waits_for_a_person(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take a shell without anything to run, or waiting for ever, for a person who will type."""
    if not facts.idle_command:
        return None
    return Evidence(
        WorkloadClass.INTERACTIVE, 6, f"Its command waits for somebody: {facts.idle_command}."
    )


def is_one_of_an_array(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take one of many equal training jobs for a trial, of other jobs for a batch."""
    if not facts.is_array:
        return None
    if facts.job_type is JobType.TRAINING:
        return Evidence(WorkloadClass.HPO_TRIAL, 5, "It is one training job of an array.")
    return Evidence(WorkloadClass.BATCH_INFERENCE, 2, "It is one job of an array.")


def runs_on_many_gpus(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take many whole GPUs that start together for training."""
    if facts.job_type is JobType.SERVICE or facts.gpu_count < 2 or not facts.gang:
        return None
    return Evidence(
        WorkloadClass.TRAINING, 2, f"It asks for {facts.gpu_count} GPUs that start together."
    )


def shares_a_gpu(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take a part of one GPU for work that does not fill it."""
    if not 0 < facts.gpu_milli < 1000 or facts.gpu_count == 0:
        return None
    kind = (
        WorkloadClass.SERVING
        if facts.job_type is JobType.SERVICE
        else WorkloadClass.BATCH_INFERENCE
    )
    return Evidence(kind, 1, f"It asks for {facts.gpu_milli / 10:g} % of a GPU.")


def writes_checkpoints(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take what saves its progress for training."""
    if not facts.writes_checkpoints or facts.job_type is JobType.SERVICE:
        return None
    return Evidence(WorkloadClass.TRAINING, 1, "It writes checkpoints.")


def has_a_deadline(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take a batch that must be ready by an instant for inference over data."""
    if not facts.has_deadline or facts.job_type is not JobType.BATCH:
        return None
    return Evidence(WorkloadClass.BATCH_INFERENCE, 1, "It is a batch with a deadline.")


def is_stated_long(facts: RequestFacts, _: Past) -> Evidence | None:
    """Take hours on GPUs for training."""
    stated = facts.estimated_duration_s
    if stated is None or stated < 6 * HOUR_S or facts.gpu_count == 0:
        return None
    if facts.job_type is JobType.SERVICE:
        return None
    return Evidence(WorkloadClass.TRAINING, 2, f"It is stated to run {stated // HOUR_S} h on GPUs.")


def was_stopped_by_hand(_: RequestFacts, past: Past) -> Evidence | None:
    """Take work that people stop when they are done for interactive."""
    if past.runs + past.stopped_by_hand < 3 or past.stopped_by_hand <= past.runs:
        return None
    whole = past.runs + past.stopped_by_hand
    return Evidence(
        WorkloadClass.INTERACTIVE, 2,
        f"{past.stopped_by_hand} of its last {whole} runs were stopped by hand.",
    )  # fmt: skip


def kept_gpus_busy(facts: RequestFacts, past: Past) -> Evidence | None:
    """Take earlier runs that filled GPUs for hours for training."""
    if past.runs < 3 or past.median_s is None or past.median_s < 2 * HOUR_S:
        return None
    if facts.job_type is JobType.SERVICE or (past.utilization_permille or 0) < 700:
        return None
    return Evidence(
        WorkloadClass.TRAINING, 3,
        f"{past.runs} runs before kept their GPUs {(past.utilization_permille or 0) // 10} % busy "
        f"for {past.median_s // HOUR_S} h.",
    )  # fmt: skip


def left_gpus_idle(facts: RequestFacts, past: Past) -> Evidence | None:
    """Take hours with idle GPUs for somebody who types."""
    if past.runs < 3 or past.utilization_permille is None or past.utilization_permille >= 100:
        return None
    if facts.job_type is JobType.SERVICE or (past.median_s or 0) < HOUR_S:
        return None
    return Evidence(
        WorkloadClass.INTERACTIVE, 3,
        f"{past.runs} runs before left their GPUs {100 - past.utilization_permille // 10} % idle "
        "for an hour and more.",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    says_label,
    *(_says_words(kind) for kind in WorkloadClass),
    says_type,
    listens_on_a_port,
    waits_for_a_person,
    is_one_of_an_array,
    runs_on_many_gpus,
    shares_a_gpu,
    writes_checkpoints,
    has_a_deadline,
    is_stated_long,
    was_stopped_by_hand,
    kept_gpus_busy,
    left_gpus_idle,
)
"""Every rule in one place; a new one is a function here with a test."""
