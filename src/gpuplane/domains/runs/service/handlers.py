"""Who does steps: handlers by name, with typed input and output, and how they are told to stop."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpuplane.core.runs.plans import Answer, Completed, Sleeping, StepCall

Handler: TypeAlias = Callable[[StepCall], Awaitable[Answer]]
"""Does one call of a step and says what came of it.

It may be called again for the same attempt (after a crash, a sleep, an event): what it does
outside is asked for under the call's idempotency key. It is cancelled (`asyncio.CancelledError`)
when its step or run is cancelled or too late.
"""
Stop: TypeAlias = Callable[[StepCall], Awaitable[Answer]]
"""Ends what a step began outside; `Completed` when it is ended or never was, `Failed` if not."""
CacheInput: TypeAlias = Callable[[StepCall], Any]
"""Returns what of a call decides about its output: its input with every expression filled in."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One handler.

    Args:
        name: What plans call it.
        call: What is called.
        input_type: What the input must be; it is handed over as this. None for any JSON.
        output_type: What the output must be; None for any JSON.
        on_cancel: Ends what it began outside, when its step is cancelled after it began; without
            one there is nothing to end.
        cache_input: For steps with a cache; the input as it was written where absent.
        reads_outputs: Whether calls are given outputs of other steps; without, they are not loaded.
        at_once: Calls that one process makes at the same time; None for as many as there are.
    """

    name: str
    call: Handler
    input_type: Any = None
    output_type: Any = None
    on_cancel: Stop | None = None
    cache_input: CacheInput | None = None
    reads_outputs: bool = True
    at_once: int | None = None


class Handlers:
    """Every handler that this process knows; the composition root fills it before loops run."""

    def __init__(self) -> None:
        """Begin with the built-in ones: `runs.nothing` and `runs.sleep`."""
        self._known: dict[str, Registered] = {}
        self.add("runs.nothing", do_nothing, reads_outputs=False)
        self.add("runs.sleep", sleep_until, input_type=SleepInput, reads_outputs=False)

    def add(
        self,
        name: str,
        handler: Handler,
        input_type: Any = None,
        *,
        output_type: Any = None,
        on_cancel: Stop | None = None,
        cache_input: CacheInput | None = None,
        reads_outputs: bool = True,
        at_once: int | None = None,
    ) -> None:
        """Register a handler; see `Registered`.

        Raises:
            ValueError: If the name is taken.
        """
        if name in self._known:
            raise ValueError(f"two handlers are named {name!r}")
        self._known[name] = Registered(
            name, handler, input_type, output_type, on_cancel, cache_input, reads_outputs, at_once
        )

    def find(self, name: str) -> Registered | None:
        """Return a handler, or None."""
        return self._known.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known))

    @property
    def names(self) -> frozenset[str]:
        """Return every name."""
        return frozenset(self._known)

    @property
    def stoppable(self) -> frozenset[str]:
        """Return the handlers that are told when a step that began is cancelled."""
        return frozenset(each.name for each in self._known.values() if each.on_cancel is not None)


@dataclass(frozen=True, slots=True)
class SleepInput:
    """How long the built-in `runs.sleep` waits, in milliseconds."""

    ms: int


async def do_nothing(call: StepCall) -> Answer:
    """Complete with the input as output."""
    return Completed(call.input)


async def sleep_until(call: StepCall) -> Answer:
    """Complete after the time of the input; costs nothing meanwhile."""
    if call.state is not None:
        return Completed()
    return Sleeping(call.now + call.input.ms, state={"began": call.now})
