"""Keys once: making one takes seconds."""

from __future__ import annotations

import pytest

from gpuplane.kit.sealing import SealingKeys


@pytest.fixture(scope="session")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> SealingKeys:
    return SealingKeys(tmp_path_factory.mktemp("keys"))
