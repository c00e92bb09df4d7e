"""What is said of a log that cannot be read."""

from __future__ import annotations

import pytest

from gpuplane.backends.interface import Unavailable
from gpuplane.domains.jobs.endpoints.logs import _gone


@pytest.mark.parametrize("end", ["", "."])
def test_a_cluster_that_does_not_answer_is_told_in_one_sentence_with_a_fix(end: str) -> None:
    said = f"https://c cannot be reached: All connection attempts failed{end}"
    refusal = _gone(Unavailable("Unreachable", said))
    assert refusal.detail == "https://c cannot be reached: All connection attempts failed."
    assert "gpuplane clusters ls" in refusal.fix
