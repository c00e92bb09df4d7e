"""The import contracts hold, and each wrong move breaks one: a net with a hole is found here."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import Any

import grimp
import importlinter.contracts.acyclic_siblings
import importlinter.contracts.forbidden
import importlinter.contracts.layers
import importlinter.contracts.protected
import pytest
from importlinter import Contract, api

from tests.tidy.sources import ROOT
from tools.importlinter_private import PrivateModulesContract

KINDS = {
    "acyclic_siblings": importlinter.contracts.acyclic_siblings.AcyclicSiblingsContract,
    "forbidden": importlinter.contracts.forbidden.ForbiddenContract,
    "layers": importlinter.contracts.layers.LayersContract,
    "private": PrivateModulesContract,
    "protected": importlinter.contracts.protected.ProtectedContract,
}

# Who imports whom, below `gpuplane.`; a name after `=` is outside it.
WRONG_IMPORTS = [
    ("core.reasons", "kit.clock"),
    ("core.amounts", "=time"),
    ("core.amounts", "=random"),
    ("core.amounts", "=sqlalchemy"),
    ("kit.errors", "db.database"),
    ("db.database", "domains.jobs.tables"),
    ("backends.interface", "db.database"),
    ("backends.local", "domains.jobs.service"),
    ("backends.local", "backends.simulated"),
    ("domains.jobs.service", "backends.local"),
    ("domains.jobs.service", "domains.jobs.schemas"),
    ("domains.jobs.service", "domains.jobs.endpoints"),
    ("domains.jobs.service", "=fastapi"),
    ("domains.jobs.service", "=sqlalchemy"),
    ("domains.jobs.service", "domains.nodes.repository"),
    ("domains.jobs.service", "domains.nodes.tables"),
    ("domains.jobs.endpoints", "domains.jobs.repository"),
    ("domains.jobs.endpoints", "domains.jobs.tables"),
    ("domains.jobs.rules", "kit.clock"),
    ("domains.jobs.rules", "db.database"),
    ("domains.jobs.rules", "=time"),
    ("domains.jobs.tables", "domains.jobs.repository"),
    ("domains.nodes.service", "domains.jobs.service"),
    ("domains.events.service", "domains.identity.service"),
    ("domains.jobs.service", "loops.scheduler"),
    ("loops.scheduler", "domains.jobs.repository"),
    ("loops.scheduler", "backends.simulated"),
    ("loops.scheduler", "api.app"),
    ("api.app", "cli.main"),
    ("api.app", "entry.server"),
    ("api.app", "domains.jobs.tables"),
    ("cli.main", "domains.jobs.service"),
    ("cli.main", "db.database"),
    ("cli.main", "backends.interface"),
    ("cli.main", "=sqlalchemy"),
    ("kit.clock", "kit.errors", "kit.errors", "kit.clock"),
]
STRAY_MODULES = [
    "gpuplane.helpers",
    "gpuplane.domains.jobs.queries",
    "gpuplane.domains.extras",
    "gpuplane.backends.slurm",
]

EXCEPTED = re.findall(r"^ {4}(\S+) -> (\S+)$", (ROOT / ".importlinter").read_text(), re.MULTILINE)


@cache
def contracts() -> tuple[Contract, ...]:
    configuration: Any = api.read_configuration(str(ROOT / ".importlinter"))
    return tuple(
        KINDS[options["type"]](
            name=options["name"],
            session_options=configuration["session_options"],
            contract_options=options,
        )
        for options in configuration["contracts_options"]
    )


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("gpuplane", include_external_packages=True)


def modules_without_imports() -> grimp.ImportGraph:
    """Return today's modules and no imports but the excepted: what breaks is the wrong move."""
    bare = grimp.ImportGraph()
    for module in sorted(graph().modules):
        bare.add_module(module, is_squashed=graph().is_module_squashed(module))
    for importer, imported in EXCEPTED:
        bare.add_import(importer=importer, imported=imported)
    return bare


def broken(changed: grimp.ImportGraph) -> list[str]:
    return [
        contract.name
        for contract in contracts()
        if not contract.check(deepcopy(changed), verbose=False).kept
    ]


def full_name(short: str) -> str:
    return short[1:] if short.startswith("=") else f"gpuplane.{short}"


def test_every_contract_holds() -> None:
    assert broken(graph()) == []


@pytest.mark.parametrize("move", WRONG_IMPORTS, ids="-".join)
def test_a_wrong_import_breaks_a_contract(move: tuple[str, ...]) -> None:
    changed = modules_without_imports()
    assert broken(changed) == []
    for importer, imported in zip(move[::2], move[1::2], strict=True):
        changed.add_import(importer=full_name(importer), imported=full_name(imported))
    assert broken(changed) != []


@pytest.mark.parametrize("module", STRAY_MODULES)
def test_a_module_without_a_place_breaks_a_contract(module: str) -> None:
    changed = modules_without_imports()
    changed.add_module(module)
    assert broken(changed) != []
