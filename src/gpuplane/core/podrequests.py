"""What a pod asks for in all, of what its containers ask for: the effective request.

Owns the arithmetic; amounts are whole numbers by resource, each in one unit of the caller's.

Source: Kubernetes, "Resource sharing within containers" of init and sidecar containers: the
containers and sidecars together, or the most that starting up takes, whichever is more; what is
asked for the whole pod stands instead, and the overhead of its runtime comes on top.
"""

from collections.abc import Iterable, Mapping

Amounts = Mapping[str, int]


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


def sum_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return what both take together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def most_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return what is enough for either."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
