"""The kubeconfig of a cluster that was made, from what its configuration puts out.

Owns which outputs there are. The kubeconfig holds its credential and runs no program, so that it
can be registered; where the cloud gives short-lived tokens it is only the way to one that lasts.
"""

import json
from collections.abc import Mapping

_CREDENTIALS = {
    "token": "token",
    "client_certificate_data": "client-certificate-data",
    "client_key_data": "client-key-data",
}


class NoCredential(ValueError):
    """The outputs name no server or no credential; the message says which."""


def with_token(outputs: Mapping[str, str], token: str) -> dict[str, str]:
    """Return the outputs with this token in the place of every other credential."""
    kept = {key: value for key, value in outputs.items() if key not in _CREDENTIALS}
    return kept | {"token": token}


def kubeconfig_of(name: str, outputs: Mapping[str, str]) -> str:
    """Return the kubeconfig, as JSON, which YAML readers read as well.

    Args:
        name: Of the cluster.
        outputs: By name, as `eks`, `aks` and `gke` declare them.

    Raises:
        NoCredential: If they do not suffice.
    """
    for needed in ("server", "certificate_authority_data"):
        if not outputs.get(needed):
            raise NoCredential(f"The outputs of {name} have no {needed}.")
    user = {key: outputs[output] for output, key in _CREDENTIALS.items() if outputs.get(output)}
    if not user:
        raise NoCredential(
            f"The cloud gives no credential for {name} without a program of its own."
        )
    cluster = {
        "server": outputs["server"],
        "certificate-authority-data": outputs["certificate_authority_data"],
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": user}],
    }
    return json.dumps(document, indent=2) + "\n"
