"""The way down the ladder of likeness, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuplane.core.prediction.classes import WorkloadClass, classify
from gpuplane.core.prediction.durations import (
    Basis,
    Durations,
    choose_durations,
    expected_s,
)
from gpuplane.core.prediction.experience import (
    ENOUGH,
    KEPT_PERIODS,
    NOTHING,
    PERIOD_MS,
    Ending,
    Key,
    Measure,
    Record,
    Rung,
    Sample,
    key_of,
    list_keys,
    merge_records,
    record_of,
)
from gpuplane.core.prediction.predicting import MIN_SAMPLES, Prediction, predict
from gpuplane.core.prediction.requests import RequestFacts
from gpuplane.core.prediction.wording import (
    describe_class,
    describe_durations,
    describe_use,
    told_duration,
)
from gpuplane.core.workloads import JobType
from tests.unit.core.prediction.requests import a_request

HOUR_S = 3600


class Memory:
    """What is remembered, learned run by run."""

    def __init__(self) -> None:
        self.records: dict[Key, Record] = {}

    def learn(self, facts: RequestFacts, seconds: Sequence[int], **measures: int) -> None:
        kind = classify(facts).workload_class
        more = {Measure(name): value for name, value in measures.items()}
        samples = [Sample(1, {Measure.DURATION_S: each, **more}, Ending.ITSELF) for each in seconds]
        for key in list_keys(facts, kind):
            known = self.records.get(key, NOTHING)
            self.records[key] = merge_records([known, record_of(samples)])

    def predict(self, facts: RequestFacts) -> Prediction:
        return predict(facts, lambda key: self.records.get(key, NOTHING))


def training(name: str = "train", **fields: Any) -> RequestFacts:
    return a_request("torchrun", "main.py", name=name, job_type=JobType.TRAINING, **fields)


OTHER_PROJECT = ("tenant", "elsewhere", "user")
OTHER_USER = ("tenant", "elsewhere", "somebody")
OTHER_TENANT = ("others", "far", "stranger")


@pytest.mark.parametrize(
    ("who", "rung"),
    [
        (("tenant", "project", "user"), Rung.SERIES),
        (OTHER_PROJECT, Rung.USER),
        (OTHER_USER, Rung.TENANT_CLASS),
        (OTHER_TENANT, Rung.CLASS),
    ],
)
def test_the_most_alike_that_are_enough_are_believed(who: tuple[str, str, str], rung: Rung) -> None:
    memory = Memory()
    memory.learn(training(), [100] * MIN_SAMPLES[Rung.CLASS])
    found = memory.predict(training(who=who)).durations
    assert found is not None
    assert (found.rung, found.samples) == (rung, MIN_SAMPLES[Rung.CLASS])
    assert abs(found.median - 100) <= 3


def test_a_few_of_the_same_series_outweigh_many_others() -> None:
    memory = Memory()
    memory.learn(training("other", who=OTHER_TENANT), [9000] * 100)
    memory.learn(training(), [60] * MIN_SAMPLES[Rung.SERIES])
    found = memory.predict(training()).durations
    assert found is not None
    assert (found.rung, found.high) == (Rung.SERIES, 60)


def test_too_few_on_every_rung_predict_nothing() -> None:
    memory = Memory()
    memory.learn(training(), [60] * (MIN_SAMPLES[Rung.SERIES] - 1))
    assert memory.predict(training()).learned is None


@pytest.mark.parametrize(
    "other",
    [
        training("another"),
        training(gpus=2),
        training(model="nvidia-t4"),
        training(simulated=True),
    ],
)
def test_what_differs_in_name_size_model_or_world_is_no_series(other: RequestFacts) -> None:
    assert key_of(Rung.SERIES, other) != key_of(Rung.SERIES, training())
    assert key_of(Rung.SERIES, training("train-7")) == key_of(Rung.SERIES, training("train-8"))


def test_the_simulated_world_teaches_the_real_one_nothing() -> None:
    kind = WorkloadClass.TRAINING
    assert not {*list_keys(training(), kind)} & {*list_keys(training(simulated=True), kind)}


def test_a_key_on_a_rung_that_looks_at_the_class_needs_one() -> None:
    with pytest.raises(ValueError, match="looks at the class"):
        key_of(Rung.CLASS, training())


def test_a_service_has_no_duration() -> None:
    service = a_request("vllm", "serve", job_type=JobType.SERVICE, port=8000)
    memory = Memory()
    memory.learn(service, [100] * 20, gpu_memory_mib=70_000)
    found = memory.predict(service)
    assert found.durations is None
    assert found.gpu_memory_mib is not None


def test_memory_and_utilisation_are_known_where_they_were_measured() -> None:
    memory = Memory()
    memory.learn(training(), [7200] * 4, gpu_memory_mib=20_000, utilization_permille=900)
    found = memory.predict(training())
    assert found.gpu_memory_mib is not None
    assert found.utilization_permille is not None
    assert describe_use(found) == (
        (
            "4 similar jobs of this project took up to 19.5 GiB of a GPU in the middle, "
            "19.5 GiB at the 90th percentile."
        ),
        "4 similar jobs of this project kept their GPUs 91 % busy.",
    )
    memory.learn(training("cpu", gpus=0), [10] * 4)
    assert memory.predict(training("cpu", gpus=0)).gpu_memory_mib is None


def runs(day: int, count: int, seconds: int = 5) -> Record:
    """Return what so many runs on one day teach."""
    one = Sample(day * PERIOD_MS, {Measure.DURATION_S: seconds}, Ending.ITSELF)
    return record_of([one] * count)


def test_what_ended_long_ago_is_forgotten_when_something_new_is_learned() -> None:
    old, new = runs(0, 1), runs(KEPT_PERIODS, 1)
    assert merge_records([old, new]) == new
    within = runs(KEPT_PERIODS - 1, 1)
    assert merge_records([old, within]).sketch(Measure.DURATION_S).count == 2


def test_older_days_are_forgotten_once_newer_ones_hold_enough() -> None:
    few = merge_records([runs(1, 5), runs(2, ENOUGH - 1), runs(3, 0)])
    assert [each.number for each in few.periods] == [1, 2]
    enough = merge_records([few, runs(3, 1)])
    assert [each.number for each in enough.periods] == [2, 3]


def test_others_than_the_series_are_told_a_wider_upper_bound() -> None:
    memory = Memory()
    memory.learn(training(), [*range(1, 50)])
    series = memory.predict(training()).durations
    others = memory.predict(training(who=OTHER_USER)).durations
    assert series is not None
    assert others is not None
    assert (series.high, others.high) == (44, 46)


def test_a_duration_is_believed_in_one_order() -> None:
    learned = Durations(10, 20, 30, Basis.HISTORY)
    assert choose_durations(100, learned, 15, 5) == Durations(50, 100, 150, Basis.ESTIMATE)
    assert choose_durations(None, learned, 25, 5) == Durations(10, 20, 25, Basis.HISTORY)
    assert choose_durations(None, learned, None, 5) == learned
    assert choose_durations(None, None, 100, 5) == Durations(10, 50, 100, Basis.MAXIMUM)
    assert choose_durations(None, None, None, 8) == Durations(2, 8, 32, Basis.DEFAULT)
    assert [
        expected_s(7, learned, 5),
        expected_s(None, learned, 5),
        expected_s(None, None, 5),
        expected_s(None, learned, None),
        expected_s(None, None, None),
    ] == [7, 5, 5, 20, None]  # fmt: skip - one list


def test_a_prediction_says_what_it_rests_on() -> None:
    memory = Memory()
    memory.learn(training(), [1200] * 11 + [4000])
    found = memory.predict(training())
    learned = found.learned
    history = (
        "12 similar jobs of this project ran 19 min 59 s in the middle, "
        "20 min 31 s at the 90th percentile."
    )
    said = describe_durations(found, choose_durations(None, learned, None, HOUR_S))
    assert said.startswith("12 similar jobs of this project ran ")
    assert said.endswith("at the 90th percentile.")
    assert len(said.split()) == len(history.split())
    stated = describe_durations(found, choose_durations(HOUR_S, learned, None, HOUR_S))
    assert stated == f"Its stated 1 h is counted on. {said}"
    nothing = Memory().predict(training())
    assert describe_durations(nothing, choose_durations(None, None, None, HOUR_S)) == (
        "Nothing is known of its like: the default of 1 h."
    )
    assert describe_durations(nothing, choose_durations(None, None, 7200, HOUR_S)) == (
        "Too little like it has ended: half of its maximum of 2 h is counted on."
    )


def test_a_class_is_told_with_its_strongest_reasons() -> None:
    assert describe_class(classify(training())) == (
        "Taken for training (high): Its command, image or name says torchrun and train. "
        "Its type is training."
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3601, "1 h"),
        (5400, "1 h 30 min"),
        (90_061, "1 d 1 h"),
    ],
)  # fmt: skip - one table
def test_a_duration_is_told_in_two_units(seconds: int, told: str) -> None:
    assert told_duration(seconds) == told
