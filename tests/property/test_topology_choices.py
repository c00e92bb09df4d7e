"""The tables choose what an exhaustive comparison chooses, on any wiring up to sixteen GPUs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.topology.matrix import (
    LinkMatrix,
    LinkPreference,
    PcieLink,
    matrix_from_rows,
    parse_topo_matrix,
)
from gpuplane.core.topology.tables import TopologyClass, topology_class
from tests.examples import examples
from tests.unit.core.topology.matrices import Oracle, gpus_of, nested_switches_16


@st.composite
def matrices(draw: st.DrawFn, max_gpus: int = 6) -> LinkMatrix:
    """Return any symmetric matrix, also ones that no machine has."""
    count = draw(st.integers(1, max_gpus))
    links = draw(st.lists(st.integers(0, 4), min_size=count * count, max_size=count * count))
    paths = draw(
        st.lists(st.sampled_from(PcieLink), min_size=count * count, max_size=count * count)
    )
    numa = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))

    def at(i: int, j: int) -> int:
        return min(i, j) * count + max(i, j)

    return LinkMatrix(
        tuple(tuple(0 if i == j else links[at(i, j)] for j in range(count)) for i in range(count)),
        tuple(
            tuple(PcieLink.PIX if i == j else paths[at(i, j)] for j in range(count))
            for i in range(count)
        ),
        tuple(numa),
    )


@given(matrices(), st.sampled_from(LinkPreference), st.booleans())
@examples(40)
def test_every_mask_and_count_gives_the_exhaustive_choice(
    matrix: LinkMatrix, preference: LinkPreference, required: bool
) -> None:
    entry, oracle = TopologyClass(matrix), Oracle(matrix)
    scores = entry.score_table(preference, required=required)
    for free in range(1 << matrix.gpu_count):
        for count in range(matrix.gpu_count + 1):
            expected = oracle.best(free, count, preference, required=required)
            assert entry.best_subset(free, count, preference, required=required) == expected
            if expected is None:
                assert scores[count, free] == -1
            else:
                assert scores[count, free] == oracle.score(expected, preference)


@given(
    st.integers(1, 0xFFFF),
    st.data(),
    st.sampled_from(LinkPreference),
    st.booleans(),
)
@examples(25)
def test_sixteen_gpus_give_a_set_of_most_worth(
    free: int, data: st.DataObject, preference: LinkPreference, required: bool
) -> None:
    matrix = nested_switches_16()
    size = len(gpus_of(free))
    # Small and nearly full requests keep the comparison short; all rows are computed alike.
    count = data.draw(st.sampled_from(sorted({1, 2, 3, size - 1, size} & set(range(1, size + 1)))))
    entry, oracle = topology_class(matrix), Oracle(matrix)
    chosen = entry.best_subset(free, count, preference, required=required)
    expected = oracle.best(free, count, preference, required=required)
    if expected is None:
        assert chosen is None
        return
    assert chosen is not None
    assert oracle.worth(chosen, preference) == oracle.worth(expected, preference)
    assert chosen & ~free == 0
    assert len(gpus_of(chosen)) == count
    assert not required or oracle.allowed(chosen, preference)
    table = entry.score_table(preference, required=required)
    assert table[count, free] == oracle.score(expected, preference)


@given(matrices(max_gpus=5), st.permutations(range(5)))
def test_scores_do_not_depend_on_the_order_of_the_gpus(
    matrix: LinkMatrix, permutation: list[int]
) -> None:
    count = matrix.gpu_count
    order = [i for i in permutation if i < count]
    turned = LinkMatrix(
        tuple(tuple(matrix.nvlinks[i][j] for j in order) for i in order),
        tuple(tuple(matrix.pcie[i][j] for j in order) for i in order),
        tuple(matrix.numa[i] for i in order),
    )
    moved = [sum(1 << order[i] for i in gpus_of(mask)) for mask in range(1 << count)]
    for preference in LinkPreference:
        before = TopologyClass(matrix).score_table(preference, required=True)
        after = TopologyClass(turned).score_table(preference, required=True)
        assert np.array_equal(after, before[:, moved])


@given(matrices())
def test_more_free_gpus_never_make_a_choice_worse(matrix: LinkMatrix) -> None:
    entry = TopologyClass(matrix)
    for preference in LinkPreference:
        table = entry.score_table(preference, required=True)
        for bit in range(matrix.gpu_count):
            masks = np.arange(1 << matrix.gpu_count)
            without = masks[(masks >> bit & 1) == 0]
            assert (table[:, without | 1 << bit] >= table[:, without]).all()


@given(matrices())
def test_a_matrix_survives_its_text_form(matrix: LinkMatrix) -> None:
    assert matrix_from_rows(matrix.to_rows(), matrix.numa) == matrix


@given(matrices(), st.booleans())
def test_a_printed_matrix_is_read_back(matrix: LinkMatrix, tabs: bool) -> None:
    names = [f"GPU{i}" for i in range(matrix.gpu_count)]
    rows = [["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    for i, name in enumerate(names):
        links = [matrix.link(i, j) for j in range(matrix.gpu_count)]
        rows.append([name, *links, "0-7", str(matrix.numa[i]), "N/A"])
    glue = "\t" if tabs else "    "
    found = parse_topo_matrix("\n".join(glue.join(row) for row in rows))
    assert found.nvlinks == matrix.nvlinks
    assert found.numa == matrix.numa
    for i in range(matrix.gpu_count):
        for j in range(matrix.gpu_count):
            assert found.link(i, j) == matrix.link(i, j)


@given(st.text(alphabet="GPUNVXSYS01234 \t\n-PIXBH", max_size=200))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    refused = ""
    count = 0
    try:
        count = parse_topo_matrix(text).gpu_count
    except ValueError as error:
        refused = str(error)
    assert count >= 1 or refused.startswith("line ")


def test_every_mask_and_count_of_sixteen_gpus_gives_the_most_bandwidth() -> None:
    matrix = nested_switches_16()
    masks = np.arange(1 << 16)
    has = [masks >> i & 1 for i in range(16)]
    # The weights of the published optima: PIX 5 .. SYS 1.
    weight = np.zeros(masks.size, dtype=np.int64)
    for i in range(16):
        for j in range(i):
            weight += has[i] * has[j] * (int(matrix.pcie[i][j]) + 1)
    sizes = np.sum(has, axis=0)
    entry = topology_class(matrix)
    for count in range(1, 17):
        best = np.where(sizes == count, weight, -1)
        for bit in range(16):
            halves = best.reshape(-1, 2, 1 << bit)
            halves[:, 1] = np.maximum(halves[:, 1], halves[:, 0])
        row = entry.subset_row(count, LinkPreference.NONE, required=False).astype(np.int64)
        assert np.array_equal(row > 0, sizes >= count)
        fits = row > 0
        assert np.array_equal(sizes[row[fits]], np.full(fits.sum(), count))
        assert (row[fits] & ~masks[fits] == 0).all()
        assert np.array_equal(weight[row[fits]], best[fits])
