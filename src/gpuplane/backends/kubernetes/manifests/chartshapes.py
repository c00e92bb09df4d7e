"""Whether what a chart renders has the shape that its fields have in Kubernetes: pure.

A template that is wrongly indented puts a text where a mapping belongs. Said with its path before
any rule reads it, so that no rule has to ask.
"""

from collections.abc import Mapping
from typing import Any

_MAPPINGS = frozenset(
    {"metadata", "spec", "template", "jobTemplate", "labels", "annotations", "securityContext",
     "capabilities", "seccompProfile", "appArmorProfile", "windowsOptions", "seLinuxOptions",
     "affinity", "nodeAffinity", "volumeClaimTemplate", "ephemeral", "projected", "hostPath",
     "nodeSelector", "matchLabels"}
)  # fmt: skip
_LISTS = frozenset(
    {"containers", "initContainers", "ephemeralContainers", "volumes", "volumeClaimTemplates",
     "volumeMounts", "sources", "ports", "env", "tolerations", "schedulingGates", "rules"}
)  # fmt: skip
"""Of mappings, each."""
_TEXTS = frozenset({"labels", "annotations"})
"""Mappings of names to texts."""
_FREE = frozenset(
    {"labels", "annotations", "resources", "overhead", "nodeSelector", "matchLabels", "data",
     "stringData", "binaryData", "volumeAttributes"}
)  # fmt: skip
"""What is named in them is not of Kubernetes; amounts are read by the rule that adds them."""


def find_misshapen(value: Mapping[Any, Any], path: str = "") -> str:
    """Return what of a rendered object cannot be read, with its path; empty where all can."""
    for key, each in value.items():
        if not isinstance(key, str):
            return f"{path or 'it'} has the key {key!r}, which is no text"
        said = _find_in(key, each, f"{path}.{key}".lstrip("."))
        if said:
            return said
    return ""


def _find_in(key: str, value: Any, path: str) -> str:
    if value is None:
        return ""
    if key in _MAPPINGS and not isinstance(value, dict):
        return f"{path} is no mapping"
    if key in _LISTS and not isinstance(value, list):
        return f"{path} is no list"
    if key in _TEXTS:
        wrong = [name for name, text in value.items() if not _is_text(name, text)]
        return f"{path}: {wrong[0]!r} is not a text with a text" if wrong else ""
    if key in _FREE:
        return ""
    if isinstance(value, dict):
        return find_misshapen(value, path)
    for place, each in enumerate(value if isinstance(value, list) else ()):
        if isinstance(each, dict):
            said = find_misshapen(each, f"{path}[{place}]")
            if said:
                return said
        elif key in _LISTS:
            return f"{path}[{place}] is no mapping"
    return ""


def _is_text(name: object, text: object) -> bool:
    return isinstance(name, str) and (text is None or isinstance(text, str))
