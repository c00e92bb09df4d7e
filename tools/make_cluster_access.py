"""Writes the rules of the account that a control plane works with in a registered cluster.

They are the rights that registration checks (`gpuplane.kube.preflight`); the chart grants them to
an account when `clusterAccess.enabled` is set.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuplane.kube.preflight import KUEUE_RIGHTS, OPENSHIFT_RIGHTS, RIGHTS, Right

PAGE = Path("charts/gpuplane/files/cluster-access.yaml")
HEAD = "# Made from gpuplane.kube.preflight by `python -m tools.make_cluster_access`."


def render(rights: Iterable[Right] = (*RIGHTS, *KUEUE_RIGHTS, *OPENSHIFT_RIGHTS)) -> str:
    """Return the rules as YAML, one resource a rule, with the reasons as comments."""
    verbs: dict[tuple[str, str], list[str]] = {}
    reasons: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        resource = right.kind.plural
        if right.subresource is not None:
            resource = f"{resource}/{right.subresource}"
        key = (right.kind.group, resource)
        known = verbs.setdefault(key, [])
        known += [verb for verb in right.verbs if verb not in known]
        told = reasons.setdefault(key, [])
        told += [right.reason] if right.reason not in told else []
    lines = [HEAD]
    for (group, resource), allowed in verbs.items():
        lines += [
            f"# {'; '.join(reasons[group, resource])}",
            f'- apiGroups: ["{group}"]',
            f"  resources: [{resource}]",
            f"  verbs: [{', '.join(allowed)}]",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
