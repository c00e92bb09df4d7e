"""Writes the rules of the account that a control plane works with in a registered cluster.

They are the rights that registration checks (`gpuplane.kube.preflight`); the chart grants them to
an account when `clusterAccess.enabled` is set.
"""

from __future__ import annotations

from pathlib import Path

from gpuplane.kube.preflight import list_access_rules

PAGE = Path("charts/gpuplane/files/cluster-access.yaml")
HEAD = "# Made from gpuplane.kube.preflight by `python -m tools.make_cluster_access`."


def render() -> str:
    """Return the rules as YAML, one resource a rule, with the reasons as comments."""
    lines = [HEAD]
    for rule in list_access_rules():
        lines += [
            f"# {'; '.join(rule.reasons)}",
            f'- apiGroups: ["{rule.group}"]',
            f"  resources: [{rule.resource}]",
            f"  verbs: [{', '.join(rule.verbs)}]",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
