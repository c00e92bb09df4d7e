"""Handlers that tests steer: what they answer, when, and what they remember of being called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.runs.plans import (
    Answer,
    Awaiting,
    Completed,
    Failed,
    StepCall,
)
from gpuplane.domains.runs.service import Handlers


@dataclass
class Stage:
    """Handlers by name and everything they were called with.

    `fails` holds how often a step is still to fail, by key.
    """

    handlers: Handlers
    calls: list[StepCall] = field(default_factory=list)
    stopped: list[StepCall] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.handlers.add("do", self.do)
        self.handlers.add("gate", self.gate, on_cancel=None)
        self.handlers.add("job", self.wait_for_event, on_cancel=self.stop)
        self.handlers.add("wait", self.wait_for_event)

    def answer(self, name: str, answer: Callable[[StepCall], Answer], **more: Any) -> None:
        """Add a handler that answers by a function of its call."""

        async def handle(call: StepCall) -> Answer:
            self.calls.append(call)
            return answer(call)

        self.handlers.add(name, handle, **more)

    async def do(self, call: StepCall) -> Answer:
        """Fail as often as told, then complete with the input."""
        self.calls.append(call)
        if self.fails.get(call.key, 0) > 0:
            self.fails[call.key] -= 1
            return Failed("Told", "it was told to fail")
        return Completed(call.input)

    async def gate(self, call: StepCall) -> Answer:
        """Complete when the test opens the gate of the step's key."""
        self.calls.append(call)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gates.setdefault(call.key, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(call.key)
            raise
        finally:
            self.at_once -= 1
        return Completed()

    async def wait_for_event(self, call: StepCall) -> Answer:
        """Complete with the payload of the event that the input names."""
        self.calls.append(call)
        if call.event is not None or call.timed_out:
            return Completed({"event": call.event, "timed_out": call.timed_out})
        told = call.input
        until = told.get("wait_ms")
        return Awaiting(
            told["key"].replace("RUN", str(call.run_id)),
            until=None if until is None else call.now + until,
        )

    async def stop(self, call: StepCall) -> Answer:
        """Remember that the step was to end what it began."""
        self.stopped.append(call)
        return Completed()

    def keys(self) -> list[str]:
        """Return the keys of calls in order."""
        return [call.key for call in self.calls]

    def open(self, *keys: str) -> None:
        """Let steps go on that stand at their gate."""
        for key in keys:
            self.gates.setdefault(key, asyncio.Event()).set()
