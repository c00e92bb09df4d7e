"""Runs every benchmark, one process after another: `python -m benchmarks`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run each `bench_*.py` here; ends with 1 when one of them failed to run."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    failed = []
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {path.stem}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{path.stem}"], env=environment, cwd=root
        )
        if done.returncode:
            failed.append(path.stem)
    if failed:
        print(f"did not run: {', '.join(failed)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
