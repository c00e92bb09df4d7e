"""What a pod asks for in all, of what its containers ask for: the effective request.

Owns the arithmetic; amounts are whole numbers by resource, each in one unit of the caller's.

Source: Kubernetes, "Resource sharing within containers" of init and sidecar containers: the
containers and sidecars together, or the most that starting up takes, whichever is more; what is
asked for the whole pod stands instead, and the overhead of its runtime comes on top.
"""

from collections.abc import Iterable, Mapping
from math import ceil

from gpuplane.core.quantities import BadQuantity, parse_quantity

Amounts = Mapping[str, int]
Quantities = Mapping[str, str | int | float | None]


def effective_request(
    containers: Iterable[Amounts],
    initial: Iterable[tuple[Amounts, bool]] = (),
    whole: Amounts | None = None,
    overhead: Amounts | None = None,
) -> dict[str, int]:
    """Return a pod's effective request.

    Args:
        containers: What each container asks for.
        initial: The same of each init container, in their order, and whether it is a sidecar.
        whole: What is asked for the pod as such.
        overhead: Of its runtime.
    """
    total: Amounts = {}
    for each in containers:
        total = sum_of(total, each)
    beside: Amounts = {}
    starting: Amounts = {}
    for own, is_sidecar in initial:
        if is_sidecar:
            beside = sum_of(beside, own)
            starting = most_of(starting, beside)
        else:
            starting = most_of(starting, sum_of(beside, own))
    total = most_of(sum_of(total, beside), starting)
    return sum_of({**total, **(whole or {})}, overhead or {})


def read_request(requests: Quantities | None, limits: Quantities | None = None) -> dict[str, int]:
    """Return what is asked for, rounded up as kube-scheduler does; a limit alone is a request.

    CPU in thousandths, all else in its own unit: bytes, devices. What is no quantity is left out:
    an API server takes none such.
    """
    found: dict[str, int] = {}
    for told in (limits, requests):
        for name, quantity in (told or {}).items():
            try:
                if quantity is not None:
                    found[name] = ceil(parse_quantity(quantity) * (1000 if name == "cpu" else 1))
            except BadQuantity:
                continue
    return found


def sum_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return what both take together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def most_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return what is enough for either."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
