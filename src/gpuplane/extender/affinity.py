"""Required node affinity of a pod over the nodes of a fleet.

Owns Kubernetes' rules for node selector terms. kube-scheduler applies them to every candidate
itself; they are needed here where a gang's places are planned over all nodes.
"""

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet
from gpuplane.core.fleet.facts import NodeFacts

Rule = tuple[str, str, tuple[str, ...], bool]
"""(key, operator, values, whether it is about a field of the node instead of a label)."""
Terms = tuple[tuple[Rule, ...], ...]


@lru_cache(maxsize=4_096)
def read_required(text: str) -> Terms | None:
    """Return the required terms of an affinity, None where it requires nothing of nodes."""
    if not text:
        return None
    try:
        affinity = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    node = _mapping(_mapping(affinity).get("nodeAffinity"))
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(required, dict):
        return None
    return tuple(
        _rules(term, "matchExpressions", is_field=False)
        + _rules(term, "matchFields", is_field=True)
        for term in required.get("nodeSelectorTerms") or ()
        if isinstance(term, dict)
    )


def find_allowed(text: str, fleet: Fleet) -> Bools | None:
    """Return the nodes that a required affinity leaves, shape (node,); None for all."""
    terms = read_required(text)
    if terms is None:
        return None
    return fleet.keep(
        ("affinity", terms),
        lambda: np.array([matches(terms, node) for node in fleet.nodes], np.bool_),
    )


def matches(terms: Terms, node: NodeFacts) -> bool:
    """Tell whether a node fulfils all rules of one term; a term without rules fits no node."""
    return any(term and all(_fulfils(rule, node) for rule in term) for term in terms)


def _fulfils(rule: Rule, node: NodeFacts) -> bool:
    key, operator, values, is_field = rule
    if is_field:
        found = node.name if key == "metadata.name" else None
    else:
        found = node.labels.get(key)
    if operator == "In":
        return found in values
    if operator == "NotIn":
        return found not in values
    if operator == "Exists":
        return found is not None
    if operator == "DoesNotExist":
        return found is None
    if found is None or len(values) != 1 or operator not in ("Gt", "Lt"):
        return False
    try:
        difference = int(found) - int(values[0])
    except ValueError:
        return False
    return difference > 0 if operator == "Gt" else difference < 0


def _rules(term: dict[str, Any], name: str, *, is_field: bool) -> tuple[Rule, ...]:
    return tuple(
        (
            str(each.get("key", "")),
            str(each.get("operator", "")),
            tuple(str(value) for value in each.get("values") or ()),
            is_field,
        )
        for each in term.get(name) or ()
        if isinstance(each, dict)
    )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
