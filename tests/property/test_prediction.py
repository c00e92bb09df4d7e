"""What is learned keeps, whatever was learned in whatever order."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.prediction.classes import Confidence, Past, WorkloadClass, classify
from gpuplane.core.prediction.durations import (
    Basis,
    Durations,
    Quantile,
    choose_durations,
    outlived_ms,
)
from gpuplane.core.prediction.experience import (
    ENOUGH,
    KEPT_PERIODS,
    NOTHING,
    PERIOD_MS,
    Ending,
    Measure,
    Record,
    Sample,
    merge_records,
    record_of,
)
from gpuplane.core.prediction.hints import MEMORY_STEPS_GIB, Length, hint_of
from gpuplane.core.prediction.predicting import Expected, Prediction
from gpuplane.core.prediction.requests import stem_of
from gpuplane.core.prediction.sketches import (
    EMPTY,
    MAX_BUCKETS,
    MAX_VALUE,
    RELATIVE_ERROR,
    find_quantile,
    merge_sketches,
    sketch_values,
)
from gpuplane.core.workloads import JobType
from tests.examples import examples
from tests.unit.core.prediction.requests import a_request

values = st.lists(st.integers(0, 10**7), max_size=60)
wide = st.lists(st.integers(0, MAX_VALUE), min_size=1, max_size=60)
one_sample = st.builds(
    Sample,
    st.integers(0, 9).map(lambda day: day * PERIOD_MS) | st.integers(0, 200 * PERIOD_MS),
    st.dictionaries(st.sampled_from(Measure), st.integers(0, 10**6), max_size=3),
    st.sampled_from(Ending),
)
samples = st.lists(st.tuples(one_sample, st.integers(1, ENOUGH)), max_size=10).map(
    lambda found: [sample for sample, times in found for _ in range(times)]
)
"""Runs, some of them so often that older days are forgotten."""


@given(values, values, values)
def test_merging_is_associative_and_commutative_and_equals_counting_all(
    first: list[int], second: list[int], third: list[int]
) -> None:
    a, b, c = (sketch_values(each) for each in (first, second, third))
    whole = sketch_values([*first, *second, *third])
    assert merge_sketches([merge_sketches([a, b]), c]) == whole
    assert merge_sketches([a, merge_sketches([b, c])]) == whole
    assert merge_sketches([c, b, a]) == whole
    assert merge_sketches([a, EMPTY]) == a


@given(wide, st.integers(1, 999))
def test_a_quantile_is_a_value_that_was_counted_within_the_error(
    counted: list[int], permille: int
) -> None:
    found = find_quantile(sketch_values(counted), permille)
    assert found is not None
    share = (len(counted) + 1) * permille / 1000
    rank = int(share) if permille <= 500 else -int(-share // 1)
    exact = sorted(counted)[min(max(1, rank), len(counted)) - 1]
    assert abs(found - exact) <= RELATIVE_ERROR * exact


@given(wide)
def test_quantiles_rise_and_a_sketch_is_bounded(counted: list[int]) -> None:
    sketch = sketch_values(counted)
    found = [find_quantile(sketch, permille) or 0 for permille in range(50, 1000, 50)]
    assert found == sorted(found)
    assert len(sketch.buckets) <= min(len(counted), MAX_BUCKETS)
    assert sketch.count == len(counted)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_learning_and_how_it_is_cut_up_change_nothing(
    learned: list[Sample], chance: object
) -> None:
    whole = record_of(learned)
    shuffled = list(learned)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis gives a random.Random
    assert record_of(shuffled) == whole
    one_by_one = NOTHING
    for sample in shuffled:
        one_by_one = merge_records([one_by_one, record_of([sample])])
    assert one_by_one == whole
    half = len(shuffled) // 2
    assert merge_records([record_of(shuffled[half:]), record_of(shuffled[:half])]) == whole


@given(samples, samples, samples)
def test_merging_records_is_associative(
    first: list[Sample], second: list[Sample], third: list[Sample]
) -> None:
    a, b, c = (record_of(each) for each in (first, second, third))
    left = merge_records([merge_records([a, b]), c])
    assert left == merge_records([a, merge_records([b, c])])
    assert left == merge_records([c, a, b])


@given(samples)
def test_a_record_keeps_the_newest_days_and_survives_being_stored(learned: list[Sample]) -> None:
    record = record_of(learned)
    numbers = [each.number for each in record.periods]
    assert numbers == sorted(set(numbers))
    days = sorted({each.ended_at // PERIOD_MS for each in learned})
    assert numbers == days[len(days) - len(numbers) :]
    assert all(number > max(days) - KEPT_PERIODS for number in numbers)
    kept = [each for each in learned if each.ended_at // PERIOD_MS in numbers]
    for measure in Measure:
        counted = sum(measure in each.measures for each in kept)
        assert record.sketch(measure).count == counted
    assert record.ended == sum(each.ending is Ending.ITSELF for each in kept)
    newer = record.ended + record.stopped_by_hand
    if record.periods:
        newer -= record.periods[0].ended + record.periods[0].stopped_by_hand
    assert newer < ENOUGH, "without the oldest day there was not enough"
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record


texts = st.text("abcdefghijklmnop-_./ 0123456789ABCDEF", max_size=40)


@examples(60)
@given(
    st.lists(texts, max_size=4),
    st.sampled_from(JobType),
    st.integers(0, 16),
    st.booleans(),
    st.builds(
        Past,
        st.integers(0, 50),
        st.none() | st.integers(0, 10**6),
        st.none() | st.integers(0, 1000),
        st.integers(0, 9),
    ),
)
def test_a_class_is_the_same_every_time_and_has_the_most_points(
    command: list[str], job_type: JobType, gpus: int, is_array: bool, past: Past
) -> None:
    facts = a_request(*command, job_type=job_type, gpus=gpus, is_array=is_array)
    found = classify(facts, past)
    assert classify(facts, past) == found
    points = dict.fromkeys(WorkloadClass, 0)
    for each in found.evidence:
        points[each.workload_class] += each.points
        assert each.sentence.endswith(".")
    assert points[found.workload_class] == max(points.values()) > 0


@given(texts)
def test_a_stem_is_its_own_stem(name: str) -> None:
    assert stem_of(stem_of(name)) == stem_of(name)


@given(
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
)
def test_chosen_durations_never_turn_over_and_never_outlast_the_maximum(
    estimated: int | None, median: int | None, maximum: int | None
) -> None:
    learned = None
    if median is not None:
        learned = Durations(median // 2, median, 3 * median, Basis.HISTORY)
    found = choose_durations(estimated, learned, maximum, 3600)
    assert 0 <= found.low_s <= found.median_s <= found.high_s
    if found.basis in (Basis.HISTORY, Basis.MAXIMUM) and maximum is not None:
        assert found.high_s <= maximum


@given(st.integers(0, 400 * 1024), st.integers(1, 10**6), st.sampled_from(JobType))
def test_a_hint_is_coarse_and_rounds_memory_up(
    peak_mib: int, seconds: int, job_type: JobType
) -> None:
    kind = classify(a_request("torchrun", job_type=job_type))
    rung = Expected(0, 0, 0, "series", 3)  # type: ignore[arg-type]  # only its numbers are read
    memory = Expected(peak_mib, peak_mib, peak_mib, rung.rung, 3)
    hint = hint_of(Prediction(kind, None, memory), choose_durations(seconds, None, None, 3600))
    assert hint is not None
    assert hint.memory_gib is not None
    assert hint.memory_gib * 1024 >= peak_mib
    assert hint.memory_gib in MEMORY_STEPS_GIB or hint.memory_gib > MEMORY_STEPS_GIB[-1]
    assert (hint.workload_class is None) == (kind.confidence is Confidence.LOW)
    assert hint.length in Length


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 50), st.sampled_from(Basis))
def test_late_work_goes_on_and_its_interval_is_not_inside_out(
    elapsed_ms: int, median_s: int, factor: int, basis: Basis
) -> None:
    known = Durations(median_s, median_s, median_s * factor, basis)
    low, median, high = (outlived_ms(elapsed_ms, known, each) for each in Quantile)
    assert elapsed_ms < low
    assert elapsed_ms < median
    if elapsed_ms >= 10_000:
        assert low <= median
    if elapsed_ms >= known.high_s * 1000:
        assert median <= high
