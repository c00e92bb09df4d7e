"""A way into one cluster: its address, whom to trust there and who we are.

Holds secrets and shows none: no repr, no error and no log line made from here has any.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster's API server, and as whom.

    Attributes:
        server: `https://host:port`, with a path where a gateway stands before the cluster.
        ca_pem: Whom to trust, as PEM; None trusts what the machine trusts.
        token: A bearer token.
        token_file: A file that holds one and is replaced now and then (in a Pod).
        certificate_pem: A client certificate with its chain, as PEM.
        key_pem: Its key, unencrypted PEM.
        tls_server_name: The name that the server's certificate must have, where it is not the host.
        namespace: What the context of the kubeconfig names.
        context: Its name, for people.
        expires_at: When the client certificate or the token runs out, ms since the epoch, where
            that can be read from it.
    """

    server: str
    ca_pem: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    namespace: str = "default"
    context: str = ""
    expires_at: int | None = None
