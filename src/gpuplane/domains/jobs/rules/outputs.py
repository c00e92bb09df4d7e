"""Which outputs are sensitive, and how outputs are shown."""

from collections.abc import Mapping, Sequence
from typing import Any


def mask_outputs(outputs: Mapping[str, Any], sealed: Sequence[str]) -> dict[str, Any]:
    """Return outputs as anybody may see them: sealed ones are named and masked."""
    return {**outputs, **dict.fromkeys(sealed, "********")}


def mask_sensitive(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return outputs with the values masked of which the name says that they are secret."""
    return mask_outputs(outputs, [name for name in outputs if is_sensitive_output(name)])


def mask_deeply(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those masked, at any depth, of which the name says that they are secret.

    What is empty, or only names a Secret, stays to be seen.
    """
    return {name: _masked(name, value) for name, value in values.items()}


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return mask_deeply(value)
    if isinstance(value, list):
        return [_masked(name, each) for each in value]
    if not isinstance(value, str) or not value or value == "$(GPUPLANE_SECRET)":
        return value
    return "********" if is_sensitive_output(name) else value


SENSITIVE_MARKS = ("key", "token", "secret", "password", "passwd", "credential")


def is_sensitive_output(name: str) -> bool:
    """Return whether an output's name says that its value is a secret."""
    lowered = name.lower()
    return any(mark in lowered for mark in SENSITIVE_MARKS)
