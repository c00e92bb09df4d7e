"""An import contract: some modules of every child of a package are that child's own business.

It checks direct imports only: who reaches a domain's tables through its service is welcome.
"""

from __future__ import annotations

from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PrivateModulesContract(Contract):
    """Refuse any direct import of a child's private modules from outside that child."""

    type_name = "private"

    parent = fields.StringField()
    private_modules = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - the signature is import-linter's
        parent, names = cast(str, self.parent), cast(list[str], self.private_modules)
        children = graph.find_children(parent) if parent in graph.modules else set()
        trespasses: list[tuple[str, str]] = []
        for child in sorted(children):
            for private in (f"{child}.{name}" for name in names):
                inside = {private} & graph.modules
                inside |= graph.find_descendants(private) if inside else set()
                trespasses += [
                    (importer, module)
                    for module in sorted(inside)
                    for importer in sorted(graph.find_modules_that_directly_import(module))
                    if importer != child and not importer.startswith(f"{child}.")
                ]
        return ContractCheck(kept=not trespasses, metadata={"trespasses": trespasses})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, module in check.metadata["trespasses"]:
            output.print_error(f"{importer} is not allowed to import {module}")
