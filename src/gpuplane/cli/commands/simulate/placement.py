"""`gpuplane simulate placement`: how much of a fleet a policy gives out, worked out here.

Owns reading the files and showing the report; the replay is the core's.
"""

import gzip
import math
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.output import Output, output_option, show_one
from gpuplane.core.simulation.placement.ahead import LookAhead, MovingPlacer
from gpuplane.core.simulation.placement.arrivals import TooManyArrivalsError
from gpuplane.core.simulation.placement.files import ListError, parse_nodes, parse_pods
from gpuplane.core.simulation.placement.reference import ReferencePolicy
from gpuplane.core.simulation.placement.replays import (
    POLICIES,
    Order,
    Report,
    capacity_of,
    list_arrivals,
    list_nodes,
    make_placer,
    policy_of,
    replay,
)

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"
DIGITS = 6
"""Decimals of a ratio: a thousandth of a GPU among ten thousand."""


@click.command()
@click.option(
    "--nodes",
    "nodes_file",
    required=True,
    type=click.Path(path_type=Path),
    help="Node list: sn, cpu_milli, memory_mib, gpu, model.",
)
@click.option(
    "--pods",
    "pods_file",
    required=True,
    type=click.Path(path_type=Path),
    help="Pod list: name, cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec if it has one.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="fragmentation",
    show_default=True,
    help="How nodes are ranked: a published policy (the first six) or one of ours.",
)
@click.option(
    "--order",
    type=click.Choice([each.value for each in Order]),
    default=Order.FILE.value,
    show_default=True,
    help="As the list has them, again and again; or shuffled and filled up with clones.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=42, show_default=True, help="Of everything by chance."
)
@click.option(
    "--arrivals",
    type=click.FloatRange(0.001, 10),
    default=1.3,
    show_default=True,
    help="GPU demand that arrives, as a multiple of the GPUs.",
)
@click.option(
    "--look-ahead",
    type=click.IntRange(0, 100_000),
    default=0,
    show_default=True,
    help="Pods that are known and undecided; the best of them goes next. Only with ours.",
)
@click.option(
    "--moves",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Placed pods that may be moved so that a refused one fits. Only with ours.",
)
@output_option
def placement(
    nodes_file: Path,
    pods_file: Path,
    policy: str,
    order: str,
    seed: int,
    arrivals: float,
    look_ahead: int,
    moves: int,
    output: Output,
) -> None:
    """Place the pods of a list on the nodes of a list, one after another, as they arrive.

    Pods never leave, and one that fits nowhere is dropped: what counts is how much of the GPUs is
    given out when more was asked for than there is. Lists are CSV files, packed with gzip or not.
    """
    if math.isnan(arrivals):  # which is in no range, and which a range lets pass
        fix = "Write a number from 0.001 to 10, such as 1.3."
        raise CliError("nan is no number.", fix=fix, field="--arrivals", code=Exit.USAGE)
    is_ours = policy not in set(ReferencePolicy)
    if (look_ahead or moves) and not is_ours:
        message = f"The published policy {policy} neither looks ahead nor moves pods."
        fix = "Leave the option out, or name a policy of ours, such as fragmentation."
        field = "--look-ahead" if look_ahead else "--moves"
        raise CliError(message, fix=fix, field=field, code=Exit.USAGE)
    nodes = _read(nodes_file, parse_nodes)
    pods = _read(pods_file, parse_pods)
    capacity = capacity_of(nodes)
    try:
        arriving = list_arrivals(pods, capacity, Order(order), round(arrivals * 1000), seed)
    except TooManyArrivalsError as error:
        message = f"The pods ask for so few GPUs that {error}."
        fix = "Ask for less to arrive, or name fewer nodes."
        raise CliError(message, fix=fix, field="--arrivals", code=Exit.USAGE) from error
    listed = list_nodes(nodes, Order(order), seed)
    beyond: dict[str, Any] = {}
    began = time.perf_counter()
    if is_ours and (look_ahead or moves):
        placer = MovingPlacer(listed, pods, policy_of(policy), seed, moves)
        ahead = LookAhead(arriving, placer, look_ahead)
        report = replay(ahead, placer, capacity)
        beyond = {
            "look_ahead": look_ahead,
            "longest_wait": ahead.longest_wait,
            "moves": placer.moves,
        }
    else:
        report = replay(arriving, make_placer(policy, listed, pods, seed), capacity)
    shown = {
        "policy": policy,
        "order": order,
        "seed": seed,
        **describe_report(report),
        **beyond,
        "wall_s": round(time.perf_counter() - began, 3),
    }
    show_one(shown, _list_fields(shown), output)


def _list_fields(shown: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what people read: one line a figure, and one for each look at the cluster."""
    fields: list[tuple[str, object]] = []
    for name, value in shown.items():
        if name != "checkpoints":
            fields.append((name.replace("_", " "), value))
            continue
        for each in value:
            refused = ", ".join(
                f"{number} of {count} GPU" for count, number in each["refused_by_gpu_count"].items()
            )
            text = f"{each['allocation_ratio']:.2%} given out, {each['fragment_ratio']:.2%} useless"
            fields.append((f"at {each['arrivals_percent']} %", f"{text}; refused {refused or 0}"))
    return fields


def describe_report(report: Report) -> dict[str, Any]:
    """Return a report by the names that it is printed with."""
    return {
        "arrived": report.arrived,
        "placed": report.placed,
        "allocated_gpu_milli": report.allocated_milli,
        "allocation_ratio": round(report.allocation_ratio, DIGITS),
        "cpu_milli_left": report.cpu_milli_left,
        "refused_by_gpu_count": _by_count(report.refused),
        "refused_shares": report.refused_shares,
        "checkpoints": [
            {
                "arrivals_percent": each.arrivals_percent,
                "allocation_ratio": round(each.allocation_ratio, DIGITS),
                "fragment_ratio": round(each.fragment_ratio, DIGITS),
                "refused_by_gpu_count": _by_count(each.refused),
            }
            for each in report.checkpoints
        ],
    }


def _by_count(refused: dict[int, int]) -> dict[str, int]:
    return {str(count): number for count, number in sorted(refused.items())}


def _read(path: Path, parse: Callable[[Iterable[str]], T]) -> T:
    """Read a list, packed or not."""
    fix = "Name a CSV file in UTF-8, packed with gzip or not."
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        opener = gzip.open if packed else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            return parse(lines)
    except ListError as error:
        raise CliError(f"{error}.", field=str(path), code=Exit.USAGE) from error
    except UnicodeDecodeError as error:
        with opener(path, "rb") as content:
            number = next(place for place, line in enumerate(content, 1) if not _is_text(line))
        message = f"line {number}: found a byte that is not UTF-8, expected text."
        raise CliError(message, fix=fix, field=str(path), code=Exit.USAGE) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        message = "It is packed with gzip, and cut off or damaged; expected a whole file."
        raise CliError(message, fix=fix, field=str(path), code=Exit.USAGE) from error
    except OSError as error:
        message = f"The file cannot be read: {error.strerror or error}."
        raise CliError(message, fix=fix, field=str(path), code=Exit.USAGE) from error


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
