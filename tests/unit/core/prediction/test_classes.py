"""Which class a job is taken for, how sure that is, and why."""

from __future__ import annotations

import pytest

from gpuplane.core.prediction.classes import (
    RULES,
    Classification,
    Confidence,
    Past,
    WorkloadClass,
    classify,
)
from gpuplane.core.prediction.requests import CLASS_LABEL
from gpuplane.core.workloads import CheckpointConfig, JobType
from tests.unit.core.prediction.requests import a_request

TRAINING, FINE_TUNING = WorkloadClass.TRAINING, WorkloadClass.FINE_TUNING
BATCH, SERVING = WorkloadClass.BATCH_INFERENCE, WorkloadClass.SERVING
INTERACTIVE, TRIAL = WorkloadClass.INTERACTIVE, WorkloadClass.HPO_TRIAL


def sentences(found: Classification) -> str:
    return " ".join(each.sentence for each in found.evidence)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["torchrun", "--nproc-per-node=8", "train.py"], TRAINING),
        (["python", "-m", "torch.distributed.run", "main.py"], TRAINING),
        (["accelerate", "launch", "run.py"], TRAINING),
        (["python", "finetune.py", "--lora-rank", "8"], FINE_TUNING),
        (["bash", "-c", "python fine-tune/main.py"], FINE_TUNING),
        (["python", "batch_inference.py"], BATCH),
        (["python", "-m", "tools.embed", "corpus.jsonl"], BATCH),
        (["vllm", "serve", "meta-llama/Llama-3-8B"], SERVING),
        (["jupyter", "lab", "--ip=0.0.0.0"], INTERACTIVE),
        (["/bin/bash"], INTERACTIVE),
        (["sleep", "infinity"], INTERACTIVE),
        (["bash", "-c", "tail -f /dev/null"], INTERACTIVE),
        (["wandb", "agent", "team/project/sweep"], TRIAL),
        (["python", "optuna_trial.py"], TRIAL),
    ],
)
def test_a_command_tells_the_class(command: list[str], expected: WorkloadClass) -> None:
    found = classify(a_request(*command))
    assert found.workload_class is expected
    assert found.confidence is not Confidence.LOW


def test_a_log_thrown_away_makes_nothing_interactive() -> None:
    found = classify(a_request("bash", "-c", "python train.py > /dev/null"))
    assert found.workload_class is TRAINING


def test_a_service_is_serving_unless_a_person_sits_before_it() -> None:
    assert classify(a_request("./server", job_type=JobType.SERVICE)).workload_class is SERVING
    notebook = a_request("jupyter", "lab", job_type=JobType.SERVICE, port=8888)
    assert classify(notebook).workload_class is INTERACTIVE


def test_a_port_speaks_for_serving_and_says_so() -> None:
    found = classify(a_request("./main", port=8000))
    assert found.workload_class is SERVING
    assert "It listens on a port." in sentences(found)


def test_one_training_job_of_an_array_is_a_trial_and_one_batch_job_is_inference() -> None:
    trial = classify(a_request("python", "main.py", job_type=JobType.TRAINING, is_array=True))
    assert trial.workload_class is TRIAL
    batch = classify(a_request("python", "main.py", is_array=True))
    assert batch.workload_class is BATCH


def test_many_gpus_that_start_together_speak_for_training() -> None:
    found = classify(a_request("./main", gpus=8, replicas=2))
    assert found.workload_class is TRAINING
    assert "It asks for 16 GPUs that start together." in sentences(found)


def test_hours_and_checkpoints_speak_for_training() -> None:
    found = classify(
        a_request("./main", estimated_duration_s=8 * 3600, checkpoint=CheckpointConfig())
    )
    assert found.workload_class is TRAINING
    assert "It is stated to run 8 h on GPUs. It writes checkpoints." in sentences(found)


def test_a_batch_with_a_deadline_is_inference() -> None:
    found = classify(a_request("./main", deadline=1))
    assert found.workload_class is BATCH
    assert "It is a batch with a deadline." in sentences(found)


def test_the_users_own_label_outweighs_everything() -> None:
    labels = {CLASS_LABEL: "interactive"}
    found = classify(a_request("torchrun", "train.py", gpus=8, labels=labels))
    assert (found.workload_class, found.confidence) == (INTERACTIVE, Confidence.HIGH)
    ignored = classify(a_request("torchrun", "train.py", labels={CLASS_LABEL: "something"}))
    assert ignored.workload_class is TRAINING


def test_nothing_to_go_by_is_a_guess() -> None:
    found = classify(a_request("./main"))
    assert (found.workload_class, found.confidence) == (BATCH, Confidence.LOW)


def test_runs_before_that_filled_gpus_for_hours_make_it_training() -> None:
    past = Past(runs=5, median_s=3 * 3600, utilization_permille=910)
    found = classify(a_request("./main"), past)
    assert found.workload_class is TRAINING
    assert "5 runs before kept their GPUs 91 % busy for 3 h." in sentences(found)


def test_runs_before_that_left_gpus_idle_for_hours_make_it_interactive() -> None:
    past = Past(runs=5, median_s=2 * 3600, utilization_permille=20)
    found = classify(a_request("./main"), past)
    assert found.workload_class is INTERACTIVE
    assert "5 runs before left their GPUs 98 % idle for an hour and more." in sentences(found)


def test_runs_that_people_stop_make_it_interactive() -> None:
    found = classify(a_request("./main"), Past(runs=1, stopped_by_hand=4))
    assert found.workload_class is INTERACTIVE
    assert "4 of its last 5 runs were stopped by hand." in sentences(found)


def test_one_run_before_says_nothing() -> None:
    once = Past(runs=1, median_s=9 * 3600, utilization_permille=990)
    assert classify(a_request("./main"), once) == classify(a_request("./main"))


def test_the_strongest_evidence_comes_first() -> None:
    found = classify(a_request("python", "sweep.py", job_type=JobType.TRAINING, is_array=True))
    points = [each.points for each in found.evidence]
    assert points == sorted(points, reverse=True)
    assert found.evidence[0].workload_class is found.workload_class is TRIAL


def test_every_rule_says_why_in_a_sentence() -> None:
    said = set()
    for facts, past in (
        (a_request("torchrun", "x"), Past()),
        (a_request("finetune"), Past()),
        (a_request("predict", deadline=1, is_array=True), Past()),
        (a_request("vllm", job_type=JobType.SERVICE, port=1), Past()),
        (a_request("jupyter"), Past()),
        (a_request("optuna"), Past()),
        (a_request("bash", labels={CLASS_LABEL: "serving"}), Past()),
        (
            a_request("x", gpus=2, estimated_duration_s=99_999, checkpoint=CheckpointConfig()),
            Past(),
        ),
        (a_request("x"), Past(3, 9999, 900)),
        (a_request("x"), Past(3, 9999, 10)),
        (a_request("x"), Past(0, None, None, 3)),
    ):  # fmt: skip - one case a line
        said |= {
            number
            for number, rule in enumerate(RULES)
            if (found := rule(facts, past)) is not None and found.sentence.endswith(".")
        }
    silent = [RULES[number] for number in range(len(RULES)) if number not in said]
    assert [getattr(each, "__name__", "") for each in silent] == ["shares_a_gpu"]
