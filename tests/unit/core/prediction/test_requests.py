"""The words of a request, and the name without what changes from run to run."""

from __future__ import annotations

import pytest

from gpuplane.core.prediction.requests import MAX_TEXT, stem_of, words_of


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-llama-7b-2026-11-20-seed3", "train-llama-7b-seed"),
        ("train-llama-7b-2026-11-21-seed14", "train-llama-7b-seed"),
        ("Eval_run.12", "eval-run"),
        ("resnet50", "resnet"),
        ("job-3fa9c1d7", "job"),
        ("2026", "2026"),
        ("facade", "facade"),
    ],
)
def test_a_stem_is_what_stays_from_run_to_run(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_words_are_lower_case_with_their_neighbours() -> None:
    assert words_of(["Fine-Tune it", "now"]) == {
        "fine",
        "tune",
        "it",
        "now",
        "fine-tune",
        "tune-it",
    }  # fmt: skip - one set


def test_a_long_command_is_read_from_its_beginning() -> None:
    found = words_of(["first " + "x" * MAX_TEXT, "last"])
    assert "first" in found
    assert "last" not in found
