"""What earlier runs teach, and the images of models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane.operator.models import BadModels, load_models, read_models
from gpuplane.operator.rules.profiles import Run, compute_profile, list_recommendations


def runs(*durations: int, gpus: int = 2, product: str = "A", failure: str = "") -> list[Run]:
    return [Run(f"{gpus}{product}{d}{failure}", gpus, d, product, failure) for d in durations]


def test_the_profile_counts_successes_and_their_durations() -> None:
    told = compute_profile([*runs(10, 20, 30, 40), *runs(5, failure="Error")])
    assert told == {
        "runs": 5,
        "succeeded": 4,
        "durationSecondsP50": 20,
        "durationSecondsP90": 40,
    }


def test_two_runs_teach_nothing() -> None:
    assert list_recommendations(runs(10, 20, failure="OOMKilled"), 2) == []


def test_runs_killed_for_memory_advise_more_of_it() -> None:
    (told,) = list_recommendations(runs(1, 2, 3, failure="Error: OOMKilled"), 2)
    assert told.startswith("3 of the last 3 runs were killed for memory")


def test_a_kind_of_gpu_that_takes_longer_is_named() -> None:
    seen = [*runs(10, 11, 12), *runs(20, 21, 22, product="B")]
    (told,) = list_recommendations(seen, 2)
    assert told.startswith("runs on A end soonest; B took longer")


def test_gpus_that_hardly_help_are_told() -> None:
    seen = [*runs(100, 100, 100, gpus=2), *runs(95, 95, 95, gpus=8)]
    (told,) = list_recommendations(seen, 8)
    assert told.startswith("8 GPUs are 1.1 times as fast as 2")
    good = [*runs(100, 100, 100, gpus=2), *runs(26, 26, 26, gpus=8)]
    assert list_recommendations(good, 8) == []


def test_models_are_an_image_or_a_mapping() -> None:
    found = read_models("llama2: r/l:1\n'*': {image: r/any, command: [run], env: {N: 1}}")
    assert found["llama2"].image == "r/l:1"
    assert (found["*"].command, found["*"].env) == (("run",), {"N": "1"})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("llama2: {command: [a]}", "llama2"),
        ("llama2: {image: a, imgae: b}", "llama2.imgae"),
        ("llama2: {image: a, command: run}", "llama2.command"),
        ("llama2: {image: a, env: [x]}", "llama2.env"),
        ("- a", "no mapping"),
        ("a: [", "no YAML"),
    ],
)
def test_models_that_cannot_be_are_refused_by_field(text: str, field: str) -> None:
    with pytest.raises(BadModels, match=field):
        read_models(text)


def test_a_file_that_was_replaced_is_read_anew_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("llama2: r/l:1")
    models = load_models(path)
    assert models.find("gpt") is None
    for text, stamp, image in (("gpt: r/g:1", 1, "r/g:1"), ("gpt: [", 2, "r/g:1")):
        path.write_text(text)
        os.utime(path, ns=(stamp, stamp))
        found = models.find("gpt")
        assert found is not None
        assert found.image == image
    assert models.names() == {"gpt"}
