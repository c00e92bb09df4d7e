"""Places under keys that a step holds while those inside it wait for places: who waits for ever."""

from collections.abc import Iterator, Sequence

from gpuplane.domains.pipelines.documents.configs import branches_of
from gpuplane.domains.pipelines.documents.models import Pipeline, Step
from gpuplane.domains.pipelines.documents.reading import nested_path
from gpuplane.kit.errors import FieldError

Wish = tuple[str, str, str]
"""A key that is held, the key that is waited for meanwhile, and the path of the step that waits."""


def check_limits(pipeline: Pipeline) -> Iterator[FieldError]:
    """Yield the limits that can never be met: each waits for a place that is held around it.

    A container keeps its place while its steps wait for theirs. With one key for both they wait
    for each other; with two keys, another container may hold them the other way round.
    """
    after: dict[str, set[str]] = {}
    for held, wanted, path in _wishes("spec.steps", pipeline.spec.steps, ()):
        if held == wanted:
            yield FieldError(
                f"{path}.limit.key",
                f"The step around it holds a place under {held[:100]!r} while it waits for one.",
                "Leave the limit to one of the two, or give them different keys.",
            )
        elif held in _reached(after, wanted):
            yield FieldError(
                f"{path}.limit.key",
                f"It waits for {wanted[:100]!r} while {held[:100]!r} is held; elsewhere it is the "
                "other way round, and both may wait for ever.",
                "Nest the keys in one order everywhere.",
            )
        else:
            after.setdefault(held, set()).add(wanted)


def _wishes(path: str, steps: Sequence[Step], held: tuple[str, ...]) -> Iterator[Wish]:
    for place, step in enumerate(steps):
        here = f"{path}[{place}]"
        own = () if step.limit is None else (step.limit.key,)
        for wanted in own:
            yield from ((key, wanted, here) for key in dict.fromkeys(held))
        for number, branch in enumerate(branches_of(step)):
            for key, wanted, where in _wishes(
                nested_path(here, step, number), branch, (*held, *own)
            ):
                # A branch of one step is written without brackets of its own.
                yield key, wanted, where.replace(f"steps[{number}][0]", f"steps[{number}]")


def _reached(after: dict[str, set[str]], start: str) -> set[str]:
    found, ahead = {start}, [start]
    while ahead:
        for key in after.get(ahead.pop(), ()):
            if key not in found:
                found.add(key)
                ahead.append(key)
    return found
