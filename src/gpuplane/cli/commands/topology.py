"""`gpuplane topology`: which GPUs of a node belong together, worked out here from its links.

Owns reading the file and showing the figures; the choice is the core's, by the scheduler's own
tables. Only `tree` asks a server.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.output import Column, Output, output_option, show_data, show_fields, show_rows
from gpuplane.core.fleet.facts import CLIQUE_LABEL
from gpuplane.core.fleet.hierarchy import (
    Branch,
    GpuPlace,
    HierarchyLevel,
    NodePlace,
    compute_hierarchy,
)
from gpuplane.core.topology.comparison import Comparison, compare_choice
from gpuplane.core.topology.matrix import (
    LinkMatrix,
    LinkPreference,
    TopologyFormatError,
    parse_topo_matrix,
)
from gpuplane.core.topology.named import MAX_NODE_GPUS, described_topology
from gpuplane.core.topology.shape import NodeShape, compute_shape

MAX_RANGE_TEXT = 40
"""Characters of one range of GPUs: more are no number."""
MAX_FILE_BYTES = 1 << 20
"""A listing of 16 GPUs with all their NICs has about 10 kB; more is another file."""


@click.group(cls=NearestGroup)
def topology() -> None:
    """See how the GPUs of a node are joined and which of them belong together.

    A matrix is the output of `nvidia-smi topo -m`, in a file or on standard input (`-`); no server
    is asked about it.
    """


def matrix_option(function: Any) -> Any:
    """Add `--matrix` to a command."""
    return click.option(
        "--matrix",
        "file",
        required=True,
        type=click.Path(path_type=Path, allow_dash=True),
        help="Output of `nvidia-smi topo -m`; - is standard input.",
    )(function)


@topology.command()
@matrix_option
@click.option("--count", required=True, type=click.IntRange(1), help="GPUs to choose.")
@click.option(
    "--preference",
    type=click.Choice([each.value for each in LinkPreference]),
    default=LinkPreference.NONE.value,
    show_default=True,
    help="What is asked of the links between them.",
)
@click.option("--required", is_flag=True, help="Refuse sets that miss the preference.")
@click.option("--free", help="GPUs to choose from, such as 0-3,6; all unless told.")
@output_option
def best(
    file: Path,
    count: int,
    preference: str,
    required: bool,  # noqa: FBT001 - click gives a flag as one
    free: str | None,
    output: Output,
) -> None:
    """Choose the best GPUs of a node, beside every other choice.

    The sum of links counts NVLinks where the node has any, else PIX 5, PXB 4, PHB 3, NODE 2, SYS 1
    for each pair.
    """
    matrix = read_matrix(file)
    mask = _read_free(free, matrix.gpu_count)
    if count > mask.bit_count():
        left = mask.bit_count()
        said = f"{count} GPUs are asked for, {left} {'is' if left == 1 else 'are'} free."
        raise _refuse(said, "Ask for fewer.")
    wanted = LinkPreference(preference)
    found = compare_choice(matrix, count, wanted, free_mask=mask, required=required)
    if found is None:
        raise _refuse(
            f"No {count} free GPUs are joined as {wanted.value} requires.",
            "Ask for fewer, or leave out --required.",
        )
    shown = _as_data(found, matrix, wanted)
    if output.is_data:
        show_data(shown, output)
    else:
        show_fields(_fields(found, shown, compute_shape(matrix), output))


@topology.command()
@matrix_option
@output_option
def show(file: Path, output: Output) -> None:
    """Show how the GPUs of a node are joined: NVLink, PCIe switches, NUMA nodes."""
    matrix = read_matrix(file)
    shape = compute_shape(matrix)
    rows = [_gpu_row(matrix, shape, gpu) for gpu in range(matrix.gpu_count)]
    if output.is_data:
        show_data(
            {
                "gpus": matrix.gpu_count,
                "nvlink": shape.nvlink.value,
                "nvlink_domains": [list(group) for group in shape.nvlink_domains],
                "pcie_switches": [list(group) for group in shape.pcie_switches],
                "numa_nodes": {str(numa): list(gpus) for numa, gpus in shape.numa_nodes.items()},
                "items": rows,
            },
            output,
        )
        return
    show_rows(rows, _columns(matrix), output)


@topology.command()
@click.argument("cluster")
@output_option
def tree(cluster: str, output: Output) -> None:
    """Show a cluster as a tree, from its blocks and racks to the MIG instances of its GPUs.

    This one asks the control plane.
    """
    from gpuplane.cli.client import Client, segment

    rows = Client().rows(f"/clusters/{segment(cluster)}/nodes")
    found = compute_hierarchy(cluster, [_place_of(row) for row in rows if row["present"]])
    if output.is_data:
        show_data(_branch_data(found), output)
        return
    deepest = HierarchyLevel.MIG if output is Output.WIDE else HierarchyLevel.NODE
    for line in _lines(found, deepest, 0):
        click.echo(line)


def _place_of(row: dict[str, Any]) -> NodePlace:
    gpus = tuple(
        GpuPlace(
            gpu["index"],
            gpu["gpu_type"],
            tuple((name, int(start)) for name, _, start in
                  (each.partition("@") for each in gpu["mig_instances"])),
        )
        for gpu in row["gpus"]
    )  # fmt: skip
    matrix = None
    if row["topology"] and gpus:
        with contextlib.suppress(ValueError):  # links that nobody can read are not known
            matrix = described_topology(row["topology"], len(gpus))
    clique = row["labels"].get(CLIQUE_LABEL, "")
    return NodePlace(row["name"], gpus, row["block"], row["rack"], clique, matrix)


def _branch_data(branch: Branch) -> dict[str, Any]:
    shown: dict[str, Any] = {"level": branch.level.value, "name": branch.name}
    if branch.note:
        shown["note"] = branch.note
    if branch.children:
        shown["children"] = [_branch_data(child) for child in branch.children]
    return shown


def _lines(branch: Branch, deepest: HierarchyLevel, depth: int) -> Iterator[str]:
    """Yield a line for each part down to a level; a node says how many GPUs it has."""
    level = branch.level.value.replace("_", " ")
    gpus = branch.count(HierarchyLevel.GPU)
    note = branch.note
    if branch.level is HierarchyLevel.NODE:
        note = ", ".join(filter(None, [f"{gpus} GPUs", note]))
    yield f"{'  ' * depth}{level} {branch.name}{f'  ({note})' if note else ''}"
    if branch.level is not deepest:
        for child in branch.children:
            yield from _lines(child, deepest, depth + 1)


def read_matrix(file: Path) -> LinkMatrix:
    """Return the matrix of a file, or end with its line, its column and what was expected."""
    name = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-":
            raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with file.open("rb") as stream:
                raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CliError(
            f"{name} cannot be read: {error.strerror or error}.",
            fix="Name a file with the output of `nvidia-smi topo -m`.",
            field="--matrix",
            code=Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.USAGE,
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise _wrong(name, f"it has more than {MAX_FILE_BYTES} bytes", "a listing of one node")
    try:
        matrix = parse_topo_matrix(raw.decode())
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise _wrong(name, f"line {line}, byte {column}: it is not UTF-8", "text") from error
    except TopologyFormatError as error:
        place = f"line {error.line}, {error.column}: {error.found}"
        raise _wrong(name, place, error.expected) from error
    if matrix.gpu_count > MAX_NODE_GPUS:
        raise _wrong(name, f"it has {matrix.gpu_count} GPUs", f"at most {MAX_NODE_GPUS}")
    return matrix


def _wrong(name: str, found: str, expected: str) -> CliError:
    return CliError(
        f"{name}: {found}.", fix=f"Expected {expected}.", field="--matrix", code=Exit.USAGE
    )


def _refuse(message: str, fix: str) -> CliError:
    return CliError(message, fix=fix, field="--count", code=Exit.REFUSED)


def _read_free(text: str | None, count: int) -> int:
    """Return the mask of GPUs written as numbers and ranges."""
    if text is None:
        return (1 << count) - 1
    mask = 0
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        is_short = len(part) <= MAX_RANGE_TEXT
        if not is_short or not low.isdecimal() or (dash and not high.isdecimal()):
            raise _bad_free(f"{part.strip()[:MAX_RANGE_TEXT]!r} is no GPU and no range.", count)
        first, last = int(low), int(high or low)
        if first > last or last >= count:
            raise _bad_free(f"{part.strip()} is not on this node.", count)
        mask |= (1 << (last + 1)) - (1 << first)
    return mask


def _bad_free(message: str, count: int) -> CliError:
    fix = f"Write numbers from 0 to {count - 1}, such as 0-{count - 1}."
    return CliError(message, fix=fix, field="--free", code=Exit.USAGE)


def _as_data(found: Comparison, matrix: LinkMatrix, preference: LinkPreference) -> dict[str, Any]:
    return {
        "gpus": list(found.gpus),
        "count": len(found.gpus),
        "preference": preference.value,
        "score": found.score,
        "links": found.links,
        "best_links": found.best_links,
        "is_optimal": found.links == found.best_links,
        "best_sets": found.best_sets,
        "sets": found.sets,
        "first_links": found.first_links,
        "mean_links": found.mean_links_milli / 1000,
        "worst_links": found.worst_links,
        "pairs": [
            {"gpus": [i, j], "link": matrix.link(i, j)}
            for at, i in enumerate(found.gpus)
            for j in found.gpus[at + 1 :]
        ],
        "numa_nodes": sorted({matrix.numa[gpu] for gpu in found.gpus}),
        "left_best_links": {str(size): links for size, links in found.left.items()},
    }


def _fields(
    found: Comparison, shown: dict[str, Any], shape: NodeShape, output: Output
) -> list[tuple[str, object]]:
    beside = (
        f"best {found.best_links}, mean {shown['mean_links']:g}, worst {found.worst_links}, "
        f"lowest indices {found.first_links}"
    )
    rows: list[tuple[str, object]] = [
        ("GPUs", ", ".join(map(str, found.gpus))),
        ("score", f"{found.score} of 100 for {shown['preference']}"),
        ("links", f"{found.links} ({beside})"),
        ("best sets", f"{found.best_sets} of {found.sets}"),
        ("NUMA nodes", ", ".join(map(str, shown["numa_nodes"]))),
        ("left behind", ", ".join(f"best {size}: {links}" for size, links in found.left.items())),
    ]
    if output is Output.WIDE:
        pairs = ", ".join(f"{p['gpus'][0]}–{p['gpus'][1]} {p['link']}" for p in shown["pairs"])
        rows += [("pairs", pairs), ("node", shape.describe())]
    return rows


def _gpu_row(matrix: LinkMatrix, shape: NodeShape, gpu: int) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "numa": matrix.numa[gpu],
        "nvlink_domain": shape.find_nvlink_domain(gpu),
        "pcie_switch": shape.find_pcie_switch(gpu),
        "links": [matrix.link(gpu, other) for other in range(matrix.gpu_count)],
    }


def _columns(matrix: LinkMatrix) -> list[Column]:
    def link_to(other: int) -> Column:
        return Column(f"GPU{other}", lambda row: row["links"][other])

    links = [link_to(other) for other in range(matrix.gpu_count)]
    return [
        Column("GPU", lambda row: row["gpu"], right=True),
        *links,
        Column("NUMA", lambda row: row["numa"], right=True),
        Column("NVLINK DOMAIN", lambda row: row["nvlink_domain"], right=True),
        Column("PCIE SWITCH", lambda row: row["pcie_switch"], right=True),
    ]
