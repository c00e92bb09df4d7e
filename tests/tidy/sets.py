"""Finds where code walks over a set: an order that differs between two runs.

A reading of the syntax, not of the types: it knows names and attributes that are assigned or
annotated as sets in the files it is given. The order-independence properties catch the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

SET_TYPES = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}
ORDER_FREE = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
ORDER_KEEPING = {"enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip"}
SET_METHODS = {"difference", "intersection", "symmetric_difference", "union"}


def _is_set_type(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.split("[")[0] in SET_TYPES
    name = annotation.attr if isinstance(annotation, ast.Attribute) else annotation
    return (name.id if isinstance(name, ast.Name) else name) in SET_TYPES


def set_attributes(trees: list[ast.Module]) -> set[str]:
    """Return the attribute names that some class declares as a set and none as anything else."""
    declared: dict[str, set[bool]] = {}
    for tree in trees:
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for field in cls.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    declared.setdefault(field.target.id, set()).add(_is_set_type(field.annotation))
    return {name for name, kinds in declared.items() if kinds == {True}}


class _Scope(ast.NodeVisitor):
    """Reads one function (or module body) and collects the walks over sets in it."""

    def __init__(self, attributes: set[str]) -> None:
        self.attributes = attributes
        self.names: set[str] = set()
        self.found: list[ast.AST] = []

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self.names
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                return method in SET_METHODS and self.is_set(value)
            case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub()):
                return self.is_set(left) or self.is_set(right)
        return False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        inner = _Scope(self.attributes)
        inner.names = set(self.names)
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        inner.names -= {argument.arg for argument in every}
        inner.names |= {argument.arg for argument in every if _is_set_type(argument.annotation)}
        for statement in node.body:
            inner.visit(statement)
        self.found += inner.found

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and _is_set_type(node.annotation):
            self.names.add(node.target.id)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                (self.names.add if self.is_set(node.value) else self.names.discard)(target.id)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if self.is_set(node.iter):
            self.found.append(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if self.is_set(node.value):
            self.found.append(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        joins = isinstance(node.func, ast.Attribute) and node.func.attr in {"join", "extend"}
        if called in ORDER_KEEPING or joins:
            self.found += [argument for argument in node.args if self.is_set(argument)]
        for argument in [node.func, *node.args, *(keyword.value for keyword in node.keywords)]:
            if called in ORDER_FREE and isinstance(argument, ast.GeneratorExp | ast.ListComp):
                self._visit_inside(argument)
            else:
                self.visit(argument)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._visit_inside(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.found += [loop.iter for loop in node.generators if self.is_set(loop.iter)]
        self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp
    visit_DictComp = visit_ListComp

    def _visit_inside(self, node: ast.AST) -> None:
        """Visit a comprehension whose own order does not show in its result."""
        self.generic_visit(node)


def walks_over_sets(tree: ast.Module, attributes: set[str]) -> Iterator[ast.AST]:
    """Yield each expression that is walked in the order of a set."""
    scope = _Scope(attributes)
    scope.visit(tree)
    yield from scope.found
