"""Writes the OpenAPI file that clients and the console are generated from: `make openapi`.

The document comes from the app itself, without a running server and without a database.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuplane.api.app import AppDependencies, create_app
from gpuplane.api.authentication import Authenticator
from gpuplane.api.routers import load_routers
from gpuplane.db.database import Database
from gpuplane.kit.clock import SystemClock

FILE = Path(__file__).parents[1] / "openapi" / "openapi.json"


def render_openapi() -> str:
    """Return the OpenAPI document of the whole API as text with a stable order."""
    database = Database("sqlite://")  # opened only when somebody asks it something
    clock = SystemClock()
    try:
        app = create_app(
            AppDependencies(
                database=database,
                clock=clock,
                authenticator=Authenticator(database, clock),
                routers=load_routers(),
            )
        )
        return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    finally:
        database.close()


def main() -> int:
    """Write the file and say what changed."""
    text = render_openapi()
    before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text, encoding="utf-8")
    operations = sum(len(verbs) for verbs in json.loads(text)["paths"].values())
    print(f"{FILE.name}: {operations} operations, {'unchanged' if text == before else 'changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
