"""What an expression refers to, and whether all of it is there: checked before anything runs."""

from collections.abc import Collection, Iterator, Mapping

from gpuplane.domains.pipelines.expressions import nodes
from gpuplane.domains.pipelines.expressions.functions import nearest
from gpuplane.domains.pipelines.expressions.nodes import Node
from gpuplane.domains.pipelines.expressions.parsing import parse
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.templates import trees_of

Known = Mapping[str, Collection[str] | None]
"""Names at the root: to the fields that each has, None where only a run knows them."""


def references(text: str, *, bare: bool = False) -> set[str]:
    """Return the ids of steps that a text's expressions read.

    Args:
        text: The text.
        bare: Whether the text is an expression even without `{{ }}`.

    Raises:
        ExpressionError: If an expression cannot be read.
    """
    nodes_ = (node for tree, _start in _trees(text, bare=bare) for node in _walk(tree))
    return {step for node in nodes_ if (step := _step_of(node)) is not None}


def check_text(text: str, known: Known, *, bare: bool = False) -> list[ExpressionError]:
    """Return every mistake of a text's expressions that can be told before a run.

    Args:
        text: The text.
        known: What names mean there.
        bare: Whether the text is an expression even without `{{ }}`.
    """
    try:
        trees = list(_trees(text, bare=bare))
    except ExpressionError as error:
        return [error]
    return [error.shifted(start) for tree, start in trees for error in _check(tree, known, set())]


def _trees(text: str, *, bare: bool = False) -> Iterator[tuple[Node, int]]:
    if bare and "{{" not in text:
        yield parse(text), 0
    else:
        yield from trees_of(text)


def _walk(tree: Node) -> Iterator[Node]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.parts())


def _step_of(node: Node) -> str | None:
    match node:
        case nodes.Select(target=nodes.Name(name="steps")):
            return node.field
        case nodes.Index(target=nodes.Name(name="steps"), key=nodes.Literal(value=str(step))):
            return step
    return None


def _check(node: Node, known: Known, bound: set[str]) -> Iterator[ExpressionError]:
    match node:
        case nodes.Name() if node.name not in known and node.name not in bound:
            fix = nearest(node.name, [*known, *bound])
            yield ExpressionError(
                f"There is no {node.name!r} here.",
                node.at,
                Kind.UNKNOWN,
                fix or f"Known are: {', '.join(sorted({*known, *bound}))}.",
            )
        case nodes.Default() | nodes.Has():
            # What may be missing is not missed; the root must be there all the same.
            yield from _check_optional(node, known, bound)
            return
        case nodes.Comprehension():
            yield from _check(node.range, known, bound)
            inner = bound | {node.variable}
            for part in (node.body, node.test):
                if part is not None:
                    yield from _check(part, known, inner)
            return
        case nodes.Select() | nodes.Index():
            yield from _check_field(node, known, bound)
    for part in node.parts():
        yield from _check(part, known, bound)


def _check_optional(
    node: nodes.Default | nodes.Has, known: Known, bound: set[str]
) -> Iterator[ExpressionError]:
    for error in _check(node.target, known, bound):
        if error.kind is not Kind.MISSING:
            yield error
    if isinstance(node, nodes.Default):
        yield from _check(node.other, known, bound)


def _check_field(
    node: nodes.Select | nodes.Index, known: Known, bound: set[str]
) -> Iterator[ExpressionError]:
    """Yield why a field of a root cannot be there; a missing step is no missing value."""
    root, key = _root_field(node)
    if root is None or root in bound:
        return
    fields = known.get(root)
    if key is None:
        if root == "steps":
            yield ExpressionError(
                "The step must be named plainly, so that the dependency is known.",
                node.at,
                Kind.UNKNOWN,
                "Write steps.<id>.outputs.",
            )
        return
    if fields is None or key in fields:
        return
    what = {"params": "parameter", "steps": "step", "run": "field of run"}.get(root, root)
    close = nearest(key, fields)
    kind = Kind.UNKNOWN if root == "steps" else Kind.MISSING
    listed = ", ".join(sorted(fields)[:20]) or "none"
    yield ExpressionError(
        f"There is no {what} {key[:100]!r}.", node.at, kind, close or f"Known are: {listed}."
    )


def _root_field(node: nodes.Select | nodes.Index) -> tuple[str | None, str | None]:
    if not isinstance(node.target, nodes.Name):
        return None, None
    if isinstance(node, nodes.Select):
        return node.target.name, node.field
    match node.key:
        case nodes.Literal(value=str(key)):
            return node.target.name, key
    return node.target.name, None
