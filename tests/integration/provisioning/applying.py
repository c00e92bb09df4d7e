"""A process that applies a kept plan, to be killed: HOME KEYS BINARY PLAN on the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuplane.kit.failpoints import arm_from_environment
from gpuplane.kit.sealing import SealingKeys
from gpuplane.provisioning.clusters import Provisioner

if __name__ == "__main__":
    home, keys, binary, plan = sys.argv[1:]
    arm_from_environment()
    sealing = SealingKeys(Path(keys))
    Provisioner(Path(home), sealing, environment=os.environ, binary=binary).apply("train", plan)
