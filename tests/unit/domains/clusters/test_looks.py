"""How a kubeconfig is read while others are answered."""

from __future__ import annotations

import threading

import pytest

from gpuplane.domains.clusters.endpoints.looks import _refusal, read_connection
from gpuplane.domains.clusters.errors import KubeconfigRefused
from gpuplane.kube.connections import Connection
from gpuplane.kube.errors import TooManyRequests, Unreachable


class Noting(str):
    """A text that remembers in which threads it was read."""

    threads: set[int]

    def strip(self, chars: str | None = None, /) -> str:
        self.threads.add(threading.get_ident())
        return super().strip(chars)


async def test_a_kubeconfig_is_read_beside_the_loop_that_answers_others() -> None:
    text = Noting("clusters: []")
    text.threads = set()
    with pytest.raises(KubeconfigRefused) as refused:
        await read_connection(text, None)
    assert refused.value.field == "kubeconfig.contexts"
    assert text.threads
    assert threading.get_ident() not in text.threads


def test_a_cluster_that_answers_too_many_requests_is_not_called_out_of_reach() -> None:
    connection = Connection("https://10.0.0.1:6443", token="t")
    refused = _refusal(connection, TooManyRequests(429, "TooManyRequests", "try again later", 1.0))
    assert refused.code == "cluster_too_busy"
    assert "refuses requests as too many" in refused.detail
    away = _refusal(connection, Unreachable("no route"))
    assert away.code == "cluster_unreachable"
    said = _refusal(connection, Unreachable("https://10.0.0.1:6443 cannot be reached: no route."))
    assert said.detail == (
        "The API server https://10.0.0.1:6443 cannot be reached from here: no route."
    )
