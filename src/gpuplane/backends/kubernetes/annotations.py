"""What annotations and labels say, read as what anybody may have written there. Pure.

A tenant can change every object in its namespace, ours among them. So nothing here raises: what
cannot be read is not there, and harms nobody but whoever wrote it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.core.fleet.facts import MigPlacement, parse_mig_device
from gpuplane.kit.depths import is_deeper

MAX_DIGITS = 18
"""Of a number that is believed: instants in ms and ranks are shorter, and all fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pod of a rank runs, and the annotations that give it its GPUs."""

    node: str
    annotations: Mapping[str, str]


def read_number(text: str | None) -> int | None:
    """Return the whole number that a text is, None where it is none.

    `isdigit` alone takes signs such as "²", and `int` refuses these and what is very long.
    """
    if not text or len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def find_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is, None where it is none that can be kept."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) and _can_be_kept(read) else None


def read_object(text: str | None) -> dict[str, Any]:
    """Do as `find_object`, with an empty object for what is none."""
    return (find_object(text) if text else None) or {}


def read_places(text: str | None) -> dict[int, Place]:
    """Return the place of each rank that an annotation names whole."""
    found = {}
    for key, told in read_object(text).items():
        rank = read_number(key)
        if rank is None or str(rank) != key or not isinstance(told, dict):
            continue
        node, hints = told.get("node"), told.get("annotations") or {}
        is_whole = isinstance(hints, dict) and all(isinstance(each, str) for each in hints.values())
        if isinstance(node, str) and node and is_whole:
            found[rank] = Place(node, hints)
    return found


def read_instances(manifest: str | None) -> set[MigPlacement]:
    """Return the MIG instances that the replicas of a manifest name."""
    replicas = read_object(manifest).get("replicas")
    found = set()
    for replica in replicas if isinstance(replicas, list) else ():
        device = replica.get("mig_device") if isinstance(replica, dict) else None
        try:
            instance = parse_mig_device(device) if isinstance(device, str) else None
        except ValueError:
            continue
        if instance is not None:
            found.add(instance)
    return found


def _can_be_kept(read: dict[str, Any]) -> bool:
    """Return whether an object may be stored: not too deep, no half of a surrogate pair in it."""
    if is_deeper(read):
        return False
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
