"""An account that something outside of a cluster comes with: its rights, and a token that lasts.

Owns the shape of the four objects; who may do what says whoever makes them. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"


def account_objects(
    namespace: str,
    account: str,
    token_secret: str,
    rules: Sequence[tuple[str, str, Sequence[str]]],
    labels: Mapping[str, str],
) -> tuple[Object, ...]:
    """Return an account, its rights and its token, in the order in which they are made.

    Args:
        namespace: Of the account and its token.
        account: The name of the account, its role and its binding.
        token_secret: The name of the Secret that controllers fill with the token.
        rules: (group, resource, verbs) of each thing that it may do, in all namespaces.
        labels: Of all four.
    """
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": namespace, "labels": labels},
            # No pod comes with it.
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": account, "labels": labels},
            "rules": [
                {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
                for group, resource, verbs in rules
            ],
        },
        role_binding(account, account, namespace, account, labels),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": token_secret,
                "namespace": namespace,
                "labels": labels,
                "annotations": {"kubernetes.io/service-account.name": account},
            },
        },
    )


def role_binding(
    name: str, role: str, namespace: str, account: str, labels: Mapping[str, str]
) -> Object:
    """Return what gives an account of a namespace the rights of a ClusterRole, everywhere."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": labels},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
