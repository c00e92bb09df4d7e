"""The tree of an expression; every node knows where it stands and how deep it is."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """Any part of an expression."""

    at: int
    depth: int = field(default=1, kw_only=True)

    def parts(self) -> "Iterator[Node]":
        """Yield the nodes directly inside."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A value that is written."""

    value: object


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """`target.field`."""

    target: Node
    field: str

    def parts(self) -> Iterator[Node]:
        yield self.target


@dataclass(frozen=True, slots=True)
class Index(Node):
    """`target[key]`."""

    target: Node
    key: Node

    def parts(self) -> Iterator[Node]:
        yield self.target
        yield self.key


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function, or an operator that both sides are evaluated for; a receiver is argument 0."""

    function: str
    arguments: tuple[Node, ...]

    def parts(self) -> Iterator[Node]:
        yield from self.arguments


@dataclass(frozen=True, slots=True)
class Junction(Node):
    """`a && b && …` or `a || b || …`."""

    is_and: bool
    arguments: tuple[Node, ...]

    def parts(self) -> Iterator[Node]:
        yield from self.arguments


@dataclass(frozen=True, slots=True)
class Choice(Node):
    """`test ? then : other`."""

    test: Node
    then: Node
    other: Node

    def parts(self) -> Iterator[Node]:
        yield self.test
        yield self.then
        yield self.other


@dataclass(frozen=True, slots=True)
class Items(Node):
    """A list."""

    items: tuple[Node, ...]

    def parts(self) -> Iterator[Node]:
        yield from self.items


@dataclass(frozen=True, slots=True)
class Pairs(Node):
    """A map."""

    pairs: tuple[tuple[Node, Node], ...]

    def parts(self) -> Iterator[Node]:
        for key, value in self.pairs:
            yield key
            yield value


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """`range.macro(variable, …)`; `body` is the transform of map, or the test of the others."""

    macro: str
    range: Node
    variable: str
    body: Node
    test: Node | None = None

    def parts(self) -> Iterator[Node]:
        yield self.range
        yield self.body
        if self.test is not None:
            yield self.test


@dataclass(frozen=True, slots=True)
class Has(Node):
    """Whether `target` has a field, or a name can be reached (Jinja's `is defined`)."""

    target: Node

    def parts(self) -> Iterator[Node]:
        yield self.target


@dataclass(frozen=True, slots=True)
class Default(Node):
    """`target`, or `other` where it is missing or null."""

    target: Node
    other: Node

    def parts(self) -> Iterator[Node]:
        yield self.target
        yield self.other
