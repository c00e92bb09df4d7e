"""Quotas of GPU models as they are written on a command line, such as `H100=8:4`.

Owns their spelling and whose model a name means; never what a queue owns of it.
"""

import re
from collections.abc import Sequence
from typing import Any

import click

from gpuplane.cli.declarations import GPU
from gpuplane.core.hardware import find_models
from gpuplane.core.mig.profiles import resource_of_profile

PROFILE = re.compile(r"\d+g\.\d+gb[a-z.+-]*")
COUNT = re.compile(r"[0-9]*")
NEGATIVE = re.compile(r"-[0-9]+")


def read_flavors(
    gpus: Sequence[str], instances: Sequence[str], models: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the quotas of whole GPUs and MIG instances that are named, each once.

    Args:
        gpus: Such as `H100=8:4`.
        instances: Such as `a100-40gb/1g.5gb=8:4`.
        models: The GPU models of the cluster.

    Raises:
        click.BadParameter: If one cannot be read, or the same is named twice.
    """
    made = [("--gpu", text, _flavor(text, models)) for text in gpus]
    made += [("--mig", text, _cut_flavor(text, models)) for text in instances]
    first: dict[tuple[str, str], str] = {}
    for option, text, flavor in made:
        pair = flavor["name"], flavor["resources"][0]["name"]
        if pair in first:
            said = f"{first[pair]!r} and {text!r} are two quotas of {pair[0]}: name it once."
            raise click.BadParameter(said, param_hint=option)
        first[pair] = text
    return [flavor for _, _, flavor in made]


def _flavor(text: str, models: Sequence[str]) -> dict[str, Any]:
    """Return the quota that `H100=8:4` stands for; models are those of the cluster."""
    model, equals, amounts = text.partition("=")
    parts = amounts.split(":")
    _refuse_negative(text, parts, "--gpu")
    if not equals or not _are_counts(parts):
        raise click.BadParameter(
            f"{text!r} is not written as MODEL=COUNT[:BORROW[:LEND]].", param_hint="--gpu"
        )
    return _flavor_of(model, GPU, parts, models)


def _cut_flavor(text: str, models: Sequence[str]) -> dict[str, Any]:
    """Return the quota that `a100-40gb/1g.5gb=8:4` stands for."""
    name, equals, amounts = text.partition("=")
    model, slash, profile = name.partition("/")
    parts = amounts.split(":")
    _refuse_negative(text, parts, "--mig")
    if not equals or not slash or not _are_counts(parts) or not PROFILE.fullmatch(profile):
        raise click.BadParameter(
            f"{text!r} is not written as MODEL/PROFILE=COUNT[:BORROW[:LEND]].", param_hint="--mig"
        )
    return _flavor_of(model, resource_of_profile(profile), parts, models)


def _refuse_negative(text: str, parts: Sequence[str], option: str) -> None:
    """Refuse an amount below 0, which is well written and means nothing."""
    for name, part in zip(("COUNT", "BORROW", "LEND"), parts, strict=False):
        if NEGATIVE.fullmatch(part):
            raise click.BadParameter(f"{text!r}: {name} must be 0 or more.", param_hint=option)


def _are_counts(parts: Sequence[str]) -> bool:
    return len(parts) <= 3 and all(COUNT.fullmatch(part) for part in parts)


def _flavor_of(
    model: str, resource: str, parts: Sequence[str], models: Sequence[str]
) -> dict[str, Any]:
    quota: dict[str, Any] = {"name": resource}
    fields = ("nominalQuota", "borrowingLimit", "lendingLimit")
    # Texts, which no parser cuts: the server says of each by itself what is wrong with it.
    told = zip(fields, parts, strict=False)
    quota.update({field: part.lstrip("0") or "0" for field, part in told if part})
    return {"name": flavor_named(model, models), "resources": [quota]}


def flavor_named(model: str, models: Sequence[str]) -> str:
    """Return the flavor of a GPU model in any spelling; of a family the one that is there.

    Raises:
        click.BadParameter: If several models may be meant.
    """
    known = [each.name for each in find_models(model)]
    here = [each for each in models if each in known]
    if not known:
        here = [each for each in models if model.lower() in each]
    meant = here or known
    if len(meant) > 1:
        raise click.BadParameter(f"{model} may mean {' or '.join(meant)}.", param_hint="--gpu")
    return meant[0] if meant else model.lower()


def flavor_in(row: dict[str, Any], model: str) -> str:
    """Return the flavor of a queue that a GPU model in any spelling means.

    Raises:
        click.BadParameter: If the queue has none of it.
    """
    names = [each["name"] for group in row["resourceGroups"] for each in group["flavors"]]
    found = model if model in names else flavor_named(model, names)
    if found not in names:
        raise click.BadParameter(
            f"{row['name']} has no quota of {model}; it has {', '.join(names) or 'none'}.",
            param_hint="--no-gpu",
        )
    return found
