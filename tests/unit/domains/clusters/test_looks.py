"""How a kubeconfig is read while others are answered."""

from __future__ import annotations

import threading

import pytest

from gpuplane.domains.clusters.endpoints.looks import read_connection
from gpuplane.domains.clusters.errors import KubeconfigRefused


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
