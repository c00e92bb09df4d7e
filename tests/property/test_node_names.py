"""Names found by columns are found as by looking up each, and nothing else is found."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.extender.naming import NameIndex, look_up

# Names of one and of many lengths, across the borders of words, and such as JSON writes otherwise.
NAMES = st.one_of(
    st.integers(0, 400).map(lambda number: f"node-{number:03}"),
    st.integers(0, 400).map(lambda number: f"ip-10-{number % 9}-{number}.compute.internal"),
    st.text(alphabet="ab.-", min_size=1, max_size=20),
    st.sampled_from(["", 'a"b', "a\\b", "ä-node", "x" * 253, "x" * 254]),
)
FLEETS = st.lists(NAMES, min_size=1, max_size=80, unique=True)


def dump(names: list[str], *, blanks: bool = False, is_ascii: bool = False) -> bytes:
    separators = (", ", ": ") if blanks else (",", ":")
    return json.dumps(names, separators=separators, ensure_ascii=is_ascii).encode()


@given(FLEETS, st.data(), st.booleans(), st.booleans())
def test_columns_find_what_single_look_ups_find(
    fleet: list[str], data: st.DataObject, blanks: bool, is_ascii: bool
) -> None:
    place_of = {name: place for place, name in enumerate(fleet)}
    asked = data.draw(st.lists(st.one_of(st.sampled_from(fleet), NAMES), min_size=1, max_size=90))
    found = NameIndex(fleet, fewest=1, fewest_uneven=1).find(
        dump(asked, blanks=blanks, is_ascii=is_ascii)
    )
    plain = look_up(asked, place_of)
    if found is not None:
        assert not plain.unknown
        assert found.column.tolist() == plain.column.tolist()


@given(st.integers(1, 300), st.randoms(use_true_random=False))
def test_plain_lists_of_known_names_are_found_by_columns(count: int, chance: object) -> None:
    fleet = [f"gpu-node-{number:05}.example.org" for number in range(300)]
    asked = fleet[:count]
    chance.shuffle(asked)  # type: ignore[attr-defined]  # Hypothesis gives a Random
    found = NameIndex(fleet, fewest=1, fewest_uneven=1).find(dump(asked))
    assert found is not None
    assert [fleet[place] for place in found.column.tolist()] == asked


@given(st.lists(st.integers(0, 299), min_size=20, max_size=60), st.binary(max_size=6), st.data())
def test_a_list_with_a_byte_changed_is_never_taken_for_another(
    numbers: list[int], noise: bytes, data: st.DataObject
) -> None:
    fleet = [f"gpu-node-{number:05}" for number in range(300)]
    raw = bytearray(dump([fleet[number] for number in numbers]))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + len(noise)] = noise
    found = NameIndex(fleet, fewest=1, fewest_uneven=1).find(bytes(raw))
    if found is not None:
        assert json.loads(bytes(raw)) == [fleet[place] for place in found.column.tolist()]
