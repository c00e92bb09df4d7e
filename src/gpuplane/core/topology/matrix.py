"""The link matrix of one node: what joins each pair of GPUs, and which NUMA node each is on.

Owns the value, its compact text form and the reader of `nvidia-smi topo -m`. Never chooses GPUs
(`tables` does) and never runs a program.

Source: the legend that `nvidia-smi topo -m` prints (X, SYS, NODE, PHB, PXB, PIX, NV#).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

MAX_NVLINKS = 64
"""More links between two GPUs than any product has; a larger number is a misread file."""
_SHOWN = 60
"""Characters of a file that are repeated in an answer."""


class LinkPreference(StrEnum):
    """What a workload asks of the links between its GPUs on a node."""

    NONE = "none"
    NVLINK = "nvlink"
    SAME_NUMA = "same_numa"
    SAME_PCIE = "same_pcie"


class PcieLink(IntEnum):
    """The path over PCIe between two devices; a larger value is closer."""

    SYS = 0
    NODE = 1
    PHB = 2
    PXB = 3
    PIX = 4


class TopologyFormatError(ValueError):
    """A link matrix cannot be read; the text names the line, the column and what was expected."""

    def __init__(self, line: int, column: str, expected: str, found: str) -> None:
        self.line = line
        self.column = _shorten(column)
        self.expected = expected
        self.found = _shorten(found)
        super().__init__(f"line {line}, {self.column}: expected {expected}, found {self.found}")


def _shorten(text: str) -> str:
    """Return what fits a line of the answer: a file that is no listing may be one long word."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """What joins the GPUs of a node; bit `i` of every mask is the GPU of row `i`.

    Attributes:
        nvlinks: Number of NVLinks of each pair, 0 where there is none, shape (gpu, gpu).
        pcie: The path over PCIe of each pair, shape (gpu, gpu); beside NVLink it is what is
            proven, and no closer.
        numa: NUMA node of each GPU; equal numbers mean the same node.

    Raises:
        ValueError: If the shapes differ, a pair is not symmetric or a number is out of range.
    """

    nvlinks: tuple[tuple[int, ...], ...]
    pcie: tuple[tuple[PcieLink, ...], ...]
    numa: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.numa)
        for name, rows in (("nvlinks", self.nvlinks), ("pcie", self.pcie)):
            if len(rows) != count or any(len(row) != count for row in rows):
                raise ValueError(f"{name} must be {count} rows of {count} values")
            for i in range(count):
                for j in range(i):
                    if rows[i][j] != rows[j][i]:
                        raise ValueError(f"{name} of GPUs {j} and {i} differs with the direction")
        if any(not 0 <= links <= MAX_NVLINKS for row in self.nvlinks for links in row):
            raise ValueError(f"nvlinks must be 0 to {MAX_NVLINKS}")

    def __hash__(self) -> int:
        # Enough to tell machines apart, and ten times cheaper than hashing every path's name:
        # a fleet looks each node's matrix up.
        return hash((self.nvlinks, self.numa))

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs."""
        return len(self.numa)

    def link(self, first: int, second: int) -> str:
        """Return the link of a pair as `nvidia-smi` writes it: `X`, `NV12`, `PIX`, ..."""
        if first == second:
            return "X"
        links = self.nvlinks[first][second]
        return f"NV{links}" if links else self.pcie[first][second].name

    def with_plain_numa(self) -> "LinkMatrix":
        """Return the same wiring with NUMA nodes numbered by first appearance.

        Two nodes that differ in nothing but those numbers are wired alike and share tables.
        """
        order: dict[int, int] = {}
        numa = tuple(order.setdefault(node, len(order)) for node in self.numa)
        return self if numa == self.numa else LinkMatrix(self.nvlinks, self.pcie, numa)

    def to_rows(self) -> tuple[str, ...]:
        """Return the links as text, one row a GPU, `NV12/PXB` where a path lies under NVLink."""
        return tuple(
            " ".join(self._cell(i, j) for j in range(self.gpu_count)) for i in range(self.gpu_count)
        )

    def _cell(self, first: int, second: int) -> str:
        if first != second and self.nvlinks[first][second]:
            return f"{self.link(first, second)}/{self.pcie[first][second].name}"
        return self.link(first, second)


def matrix_from_rows(rows: Sequence[str], numa: Sequence[int]) -> LinkMatrix:
    """Return the matrix of link rows such as `X NV12/PXB SYS`, one a GPU.

    A cell without the part after `/` takes the path from the NUMA nodes: NODE on the same one,
    SYS between two.

    Raises:
        TopologyFormatError: If a row has the wrong length or a cell is not a link.
        ValueError: If the matrix is not symmetric.
    """
    count = len(numa)
    nvlinks: list[tuple[int, ...]] = []
    pcie: list[tuple[PcieLink, ...]] = []
    if len(rows) != count:
        raise TopologyFormatError(len(rows), "rows", f"{count} rows", str(len(rows)))
    for i, row in enumerate(rows):
        cells = row.split()
        if len(cells) != count:
            raise TopologyFormatError(i + 1, "row", f"{count} links", str(len(cells)))
        parsed = [
            _read_cell(cell, i + 1, f"column {j + 1}", is_self=i == j)
            for j, cell in enumerate(cells)
        ]
        nvlinks.append(tuple(links for links, _ in parsed))
        pcie.append(tuple(_known(path, numa[i], numa[j]) for j, (_, path) in enumerate(parsed)))
    return LinkMatrix(tuple(nvlinks), tuple(pcie), tuple(numa))


def parse_topo_matrix(text: str) -> LinkMatrix:
    """Return the link matrix in the output of `nvidia-smi topo -m`.

    Reads spaces and tabs, any NIC columns, missing NIC rows, a missing or ranged NUMA column,
    terminal colours, comment lines and the legend. GPUs keep the order of their rows.

    What the text leaves out is filled from what it shows, never better than proven: the PCIe
    path beside NVLink from NICs that both GPUs reach, the NUMA node from the NUMA column, else
    from paths that stay on a node, else from equal CPU affinity.

    Raises:
        TopologyFormatError: If the text is no such output; names line, column, expectation.
    """
    table = _read_table(text.removeprefix("\ufeff"))
    order = [table.devices.index(name) for name in table.gpus]
    pcie = _gpu_paths(table, order)
    numa = _numa_nodes(table, pcie)
    count = len(order)
    nvlinks = tuple(
        tuple(table.links[i][order[j]][0] if i != j else 0 for j in range(count))
        for i in range(count)
    )
    paths = tuple(
        tuple(_known(path, numa[i], numa[j]) for j, path in enumerate(row))
        for i, row in enumerate(pcie)
    )
    return LinkMatrix(nvlinks, paths, numa)


_GPU = re.compile(r"GPU\d+$")
_NUMA = re.compile(r"[0-9]{1,6}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EXPECTED_LINK = "X, NV# or one of PIX, PXB, PHB, NODE, SYS"
# `SOC` is what drivers before 375 called SYS.
_PATHS = {link.name: link for link in PcieLink} | {"SOC": PcieLink.SYS}
_Link = tuple[int, PcieLink | None]
"""NVLinks of a pair and its PCIe path, None where NVLink hides the path."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The printed table: links[g][d] of GPU row g to device column d, affinities as printed."""

    devices: tuple[str, ...]
    gpus: tuple[str, ...]
    links: tuple[tuple[_Link, ...], ...]
    cpu_affinity: tuple[str, ...]
    numa_affinity: tuple[str, ...]


def _read_table(text: str) -> _Table:
    """Return the rows of the GPUs; rows of NICs repeat what the columns say."""
    devices: tuple[str, ...] = ()
    has_numa = False
    rows: dict[str, tuple[int, tuple[_Link, ...], str, str]] = {}
    header_line = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COLOUR.sub("", raw).rstrip()
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not devices:
            devices, has_numa = _read_header(words, line, number)
            header_line = number
            continue
        if words[0].rstrip(":") == "Legend" or words[:2] == ["NIC", "Legend:"]:
            break
        if _GPU.match(words[0]):
            if words[0] in rows:
                raise TopologyFormatError(number, "column 1", "each GPU once", words[0])
            rows[words[0]] = _read_row(line, words, number, devices, has_numa=has_numa)
    if not devices:
        raise TopologyFormatError(1, "column 1", "a header row that starts with GPU0", "no header")
    gpus = tuple(name for name in devices if _GPU.match(name))
    for name in gpus:
        if name not in rows:
            raise TopologyFormatError(header_line, name, f"a row {name} below", "none")
    links = tuple(rows[name][1] for name in gpus)
    _check_symmetry(gpus, devices, links, [rows[name][0] for name in gpus])
    return _Table(
        devices,
        gpus,
        links,
        tuple(rows[name][2] for name in gpus),
        tuple(rows[name][3] for name in gpus),
    )


def _read_header(words: list[str], line: str, number: int) -> tuple[tuple[str, ...], bool]:
    """Return the device columns and whether a NUMA column follows them."""
    devices = []
    for word in words:
        if word in ("CPU", "NUMA"):
            break
        devices.append(word)
    if not devices or not _GPU.match(devices[0]):
        raise TopologyFormatError(
            number, "column 1", "a header row that starts with GPU0", repr(words[0])
        )
    if len(set(devices)) != len(devices):
        raise TopologyFormatError(number, "header", "each device once", "a name twice")
    return tuple(devices), "NUMA Affinity" in line


def _read_row(
    line: str, words: list[str], number: int, devices: tuple[str, ...], *, has_numa: bool
) -> tuple[int, tuple[_Link, ...], str, str]:
    """Return line number, links, CPU affinity and NUMA affinity of one GPU's row."""
    name, width = words[0], len(devices)
    if name not in devices:
        raise TopologyFormatError(number, "column 1", "a GPU of the header", name)
    cells = words[1 : width + 1]
    if len(cells) < width:
        raise TopologyFormatError(
            number,
            f"column {len(cells) + 2} ({devices[len(cells)]})",
            _EXPECTED_LINK,
            "the end of the line",
        )
    links = tuple(
        _read_cell(cell, number, f"column {index + 2} ({device})", is_self=device == name)
        for index, (cell, device) in enumerate(zip(cells, devices, strict=True))
    )
    # Tabs keep an empty affinity cell visible; runs of spaces cannot.
    fields = [cell.strip() for cell in line.split("\t")] if "\t" in line else words
    rest = [*fields[width + 1 :], "", ""]
    numa = rest[1] if has_numa else ""
    if numa.isdigit() and not _NUMA.fullmatch(numa):
        expected = "the number of a NUMA node, a range or N/A"
        raise TopologyFormatError(number, "NUMA Affinity", expected, repr(numa))
    return number, links, rest[0], numa


def _read_cell(cell: str, line: int, column: str, *, is_self: bool) -> _Link:
    """Return the link that a cell states; `NV12/PXB` states both of its parts."""
    if is_self:
        if cell != "X":
            raise TopologyFormatError(line, column, "X (the GPU itself)", repr(cell))
        return 0, PcieLink.PIX
    head, slash, tail = cell.partition("/")
    if head in _PATHS and not slash:
        return 0, _PATHS[head]
    if re.fullmatch(r"NV\d{1,3}", head) and 1 <= int(head[2:]) <= MAX_NVLINKS:
        if not slash:
            return int(head[2:]), None
        if tail in _PATHS:
            return int(head[2:]), _PATHS[tail]
    raise TopologyFormatError(line, column, _EXPECTED_LINK, repr(cell))


def _check_symmetry(
    gpus: tuple[str, ...],
    devices: tuple[str, ...],
    links: tuple[tuple[_Link, ...], ...],
    lines: list[int],
) -> None:
    for i, first in enumerate(gpus):
        for j in range(i):
            forth, back = links[j][devices.index(first)], links[i][devices.index(gpus[j])]
            if forth != back:
                raise TopologyFormatError(
                    lines[i],
                    f"column {devices.index(gpus[j]) + 2} ({gpus[j]})",
                    f"{_link_text(forth)} as in the row of {gpus[j]}",
                    _link_text(back),
                )


def _link_text(link: _Link) -> str:
    return f"NV{link[0]}" if link[0] or link[1] is None else link[1].name


def _gpu_paths(table: _Table, order: list[int]) -> list[list[PcieLink | None]]:
    """Return the PCIe path of each pair, None where neither the pair nor a NIC shows it.

    Two devices that reach the same third one over paths a and b are at least as close as the
    longer of the two, and exactly that far when the two differ.
    """
    nics = [index for index, name in enumerate(table.devices) if index not in set(order)]
    paths: list[list[PcieLink | None]] = []
    for i, row in enumerate(table.links):
        paths.append([])
        for j, other in enumerate(table.links):
            stated = row[order[j]][1]
            if stated is None:
                legs = [(row[nic][1], other[nic][1]) for nic in nics]
                known = [
                    min(a, b)
                    for a, b in legs
                    if a is not None and b is not None and max(a, b) > PcieLink.SYS
                ]
                stated = max(known) if known else None
            paths[i].append(stated)
    return paths


def _numa_nodes(table: _Table, paths: list[list[PcieLink | None]]) -> tuple[int, ...]:
    """Return a NUMA number for each GPU: as printed, else by proven nearness, else by CPUs."""
    count = len(table.gpus)
    printed = [int(text) if text.isdigit() else None for text in table.numa_affinity]
    group = list(range(count))

    def join(members: Iterable[int]) -> None:
        targets = {group[member] for member in members}
        lowest = min(targets)
        for index, value in enumerate(group):
            if value in targets:
                group[index] = lowest

    for i in range(count):
        for j in range(i):
            path = paths[i][j]
            if path is not None and path > PcieLink.SYS:
                join((i, j))
    for affinity in sorted(set(table.cpu_affinity) - {"", "N/A"}):
        members = [i for i in range(count) if table.cpu_affinity[i] == affinity]
        # A container limited to one core prints the same CPUs for GPUs of different nodes;
        # a SYS path between two of them gives that away.
        if all(paths[i][j] is not PcieLink.SYS for i in members for j in members if i != j):
            join(members)
    names = {group[i]: node for i, node in reversed(list(enumerate(printed))) if node is not None}
    unused = max(names.values(), default=-1) + 1
    for leader in sorted(set(group) - set(names)):
        names[leader] = unused
        unused += 1
    return tuple(node if node is not None else names[group[i]] for i, node in enumerate(printed))


def _known(path: PcieLink | None, first: int, second: int) -> PcieLink:
    """Return the path, or the least that two NUMA numbers promise."""
    if path is not None:
        return path
    return PcieLink.NODE if first == second else PcieLink.SYS
