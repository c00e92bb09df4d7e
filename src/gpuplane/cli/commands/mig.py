"""`gpuplane mig`: how a GPU model can be cut, worked out here from the product's own tables.

Owns showing them; what is legal is the core's. Asks no server and touches no GPU.
"""

from collections import Counter
from typing import Any

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.output import Column, Output, note, output_option, show_data, show_rows
from gpuplane.core.hardware import find_model, nearest_models
from gpuplane.core.ids import GpuId
from gpuplane.core.mig.layouts import MigLayout, list_full_layouts, mig_rules
from gpuplane.core.mig.profiles import (
    KNOWN_TABLES,
    MigTable,
    PlacementSource,
    find_table,
)
from gpuplane.core.mig.rebalance import MigGpu, plan_shares

MAX_GPUS = 1_000
"""GPUs of one plan: it takes a few milliseconds a GPU."""

SOURCES = {
    PlacementSource.LISTED: "as `nvidia-smi mig -lgipp` lists them",
    PlacementSource.MOCKED: "as NVIDIA's mock of the device has them",
    PlacementSource.ASSUMED: "assumed from a model cut alike: no listing is public",
    PlacementSource.DEVICE: "as the device reports them",
}


def source_options(function: Any) -> Any:
    """Add `--model` and `--gpu`, of which one is needed."""
    by_model = click.option("--model", help="A GPU model, such as A100-80GB or H100.")
    by_gpu = click.option(
        "--gpu", type=click.IntRange(0), help="Instead: a GPU of this machine, as NVML tells it."
    )
    return by_model(by_gpu(function))


@click.group(cls=NearestGroup)
def mig() -> None:
    """See how GPUs can be cut into MIG instances, without a server and without a GPU."""


@mig.command()
@source_options
@output_option
def profiles(model: str | None, gpu: int | None, output: Output) -> None:
    """List the sizes in which a model can be cut and where each may begin."""
    table = _get_source(model, gpu)
    rows = [
        {
            "profile": each.name,
            "compute_slices": each.compute_slices,
            "memory_slices": each.memory_slices,
            "memory_gb": each.memory_gb,
            "max_instances": each.max_instances,
            "starts": list(each.starts),
        }
        for each in table.profiles
    ]
    if output.is_data:
        show_data({**_head(table), "items": rows}, output)
        return
    _note_source(table)
    show_rows(rows, PROFILE_COLUMNS, output)


@mig.command()
@source_options
@output_option
def layouts(model: str | None, gpu: int | None, output: Output) -> None:
    """List the ways to cut a model to which nothing can be added, without engine variants (+me).

    A mask has a bit for each memory slice. Profiles that differ from another in engines only, as
    +me does, are left out: they lie where the plain one lies.
    """
    table = _get_source(model, gpu)
    found = list_full_layouts(table)
    rows = [_layout_row(number, layout) for number, layout in enumerate(found)]
    rules = mig_rules(table)
    if output.is_data:
        show_data({**_head(table), "reachable_masks": list(rules.reachable), "items": rows}, output)
        return
    _note_source(table)
    show_rows(rows, LAYOUT_COLUMNS, output)
    note(f"{len(rows)} layouts; {len(rules.reachable)} masks of occupied slices can be reached.")


@mig.command()
@click.option("--model", required=True, help="A GPU model, such as A100-80GB or H100.")
@click.option(
    "--gpus", required=True, type=click.IntRange(1, MAX_GPUS), help="How many GPUs to cut."
)
@click.option(
    "--share",
    "shares",
    required=True,
    multiple=True,
    metavar="PROFILE=WEIGHT",
    help="A profile and its weight among all instances, such as 1g.10gb=70; repeated.",
)
@output_option
def plan(model: str, gpus: int, shares: tuple[str, ...], output: Output) -> None:
    """Plan layouts for a number of GPUs so that their instances come in given shares."""
    table = _get_table(model)
    weights = dict(_read_share(text) for text in shares)
    blank = [MigGpu(GpuId(f"GPU-{number:04}"), table) for number in range(gpus)]
    try:
        found, _ = plan_shares(blank, weights)
    except ValueError as error:
        raise CliError(f"{error}.", field="--share", code=Exit.USAGE) from error
    kinds = Counter(_cut_text(layout) for layout in found)
    rows = [{"gpus": count, "layout": text} for text, count in sorted(kinds.items())]
    counts: Counter[str] = sum((Counter(layout.counts()) for layout in found), Counter())
    whole = sum(counts.values())
    asked = sum(weights.values())
    named = {_plain_name(table, name): weight for name, weight in weights.items()}
    parts: list[dict[str, Any]] = [
        {
            "profile": name,
            "instances": counts.get(name, 0),
            "share": round(counts.get(name, 0) / whole, 4),
            "wanted": round(weight / asked, 4),
        }
        for name, weight in named.items()
    ]
    if output.is_data:
        show_data({**_head(table), "shares": parts, "items": rows}, output)
        return
    show_rows(rows, PLAN_COLUMNS, output)
    for part in parts:
        note(f"{part['profile']}: {part['instances']} instances, {100 * part['share']:g} % "
             f"({100 * part['wanted']:g} % wanted)")  # fmt: skip


def _get_source(model: str | None, gpu: int | None) -> MigTable:
    """Return the table of a model, or the one that a GPU of this machine reports."""
    if (model is None) is (gpu is None):
        raise CliError(
            "Either a model or a GPU of this machine is needed.",
            fix="Write --model NAME or --gpu INDEX.",
            field="--model",
            code=Exit.USAGE,
        )
    if model is not None:
        return _get_table(model)
    from gpuplane.nvml.devices import NvmlSession

    session = NvmlSession()
    table = session.read_mig_table(gpu or 0)
    session.close()
    if table is None:
        raise CliError(
            f"This machine has no GPU {gpu} with MIG.",
            fix="Name a model with --model.",
            field="--gpu",
            code=Exit.NOT_FOUND,
        )
    return table


def _get_table(model: str) -> MigTable:
    table = find_table(model)
    if table is not None:
        return table
    known = find_model(model)
    if known is not None:
        raise CliError(
            f"{known.name} has no MIG."
            if not known.supports_mig
            else f"The profiles of {known.name} are not published; its device tells them.",
            fix=f"Known with MIG are: {', '.join(KNOWN_TABLES)}.",
            field="--model",
            code=Exit.NOT_FOUND,
        )
    near = nearest_models(model)
    raise CliError(
        f"There is no GPU model {model[:60]!r} known here.",
        fix=f"Nearest names: {', '.join(near)}." if near else "",
        field="--model",
        code=Exit.NOT_FOUND,
    )


def _read_share(text: str) -> tuple[str, int]:
    name, equals, weight = text.partition("=")
    if not equals or not weight.isdecimal():
        raise CliError(
            f"{text[:60]!r} is no share.",
            fix="Write a profile, = and a whole number, such as 1g.10gb=70.",
            field="--share",
            code=Exit.USAGE,
        )
    return name, int(weight)


def _plain_name(table: MigTable, name: str) -> str:
    profile = table.find_profile(name)
    return name if profile is None else profile.name


def _head(table: MigTable) -> dict[str, Any]:
    return {
        "model": table.model,
        "memory_slices": table.memory_slices,
        "compute_slices": table.compute_slices,
        "placements": table.placements.value,
    }


def _note_source(table: MigTable) -> None:
    note(f"{table.model}: placements {SOURCES[table.placements]}.")


def _layout_row(number: int, layout: MigLayout) -> dict[str, Any]:
    return {
        "number": number,
        "instances": [{"profile": one.profile, "start": one.start} for one in layout.instances],
        "counts": layout.counts(),
        "occupied_mask": layout.occupied_mask,
        "compute_used": layout.compute_used,
        "free_memory_slices": layout.free_mask.bit_count(),
    }


def _cut_text(layout: MigLayout) -> str:
    return " ".join(f"{one.profile}@{one.start}" for one in layout.instances)


def _mask_text(row: dict[str, Any]) -> str:
    return f"{row['occupied_mask']:08b}"[::-1]


PROFILE_COLUMNS = (
    Column("PROFILE", lambda row: row["profile"]),
    Column("COMPUTE", lambda row: row["compute_slices"], right=True),
    Column("MEMORY", lambda row: row["memory_slices"], right=True),
    Column("GB", lambda row: row["memory_gb"], right=True),
    Column("MOST", lambda row: row["max_instances"], right=True),
    Column("STARTS", lambda row: row["starts"]),
)
LAYOUT_COLUMNS = (
    Column("#", lambda row: row["number"], right=True),
    Column("INSTANCES", lambda row: " ".join(f"{i['profile']}@{i['start']}"
                                             for i in row["instances"])),
    Column("COMPUTE", lambda row: row["compute_used"], right=True),
    Column("FREE", lambda row: row["free_memory_slices"], right=True),
    Column("SLICES", _mask_text, wide=True),
)  # fmt: skip
PLAN_COLUMNS = (
    Column("GPUS", lambda row: row["gpus"], right=True),
    Column("LAYOUT", lambda row: row["layout"]),
)
