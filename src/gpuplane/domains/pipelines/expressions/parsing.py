"""Reads an expression: CEL's grammar, with the forms of Jinja that mean the same.

`x | default('')`, `is none`, `is not defined`, `and or not`, `True`, `a if c else b`, `~`, filters
and `steps.step-1.outputs` become CEL's nodes here, so that evaluation knows one language.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from gpuplane.domains.pipelines.expressions.functions import FILTERS, FUNCTIONS, accepts, nearest
from gpuplane.domains.pipelines.expressions.lexing import Token, read_tokens
from gpuplane.domains.pipelines.expressions.nodes import (
    Call,
    Choice,
    Comprehension,
    Default,
    Has,
    Index,
    Items,
    Junction,
    Literal,
    Name,
    Node,
    Pairs,
    Select,
)
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind

MAX_DEPTH = 80
"""Nodes inside one another; evaluation recurses as deep."""
MAX_NESTING = 40
"""Brackets inside one another."""
MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
CONSTANTS: dict[str, object] = {
    "true": True, "True": True, "false": False, "False": False,
    "null": None, "none": None, "None": None,
}  # fmt: skip
_RESERVED = frozenset({"and", "or", "not", "if", "else", "is", "in"}) | set(CONSTANTS)
_COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
_TESTS: dict[str, str] = {
    "none": "null", "null": "null", "string": "string", "number": "number", "mapping": "map",
    "sequence": "list", "iterable": "list", "boolean": "bool", "integer": "int", "float": "double",
}  # fmt: skip
_NAMESPACES = frozenset({"math", "strings", "lists", "json", "base64"})


@lru_cache(maxsize=4_096)
def parse(source: str) -> Node:
    """Return the tree of an expression.

    Raises:
        ExpressionError: If it cannot be read; names the column.
    """
    parser = _Parser(read_tokens(source))
    tree = parser.expression()
    parser.expect_end()
    return tree


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._nesting = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _is(self, *texts: str) -> bool:
        return self._token.kind in ("sign", "word") and self._token.text in texts

    def _take(self) -> Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> Token | None:
        return self._take() if self._is(*texts) else None

    def _expect(self, text: str) -> Token:
        found = self._accept(text)
        if found is None:
            what = repr(self._token.text) if self._token.text else "the end"
            raise self._error(f"{text!r} is missing before {what}.", f"Add {text}.")
        return found

    def _error(self, message: str, fix: str = "", at: int | None = None) -> ExpressionError:
        return ExpressionError(message, self._token.at if at is None else at, Kind.SYNTAX, fix)

    def expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._error(f"{self._token.text[:50]!r} does not belong here.", "Remove it.")

    def expression(self) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ExpressionError(
                f"Brackets are nested more than {MAX_NESTING} deep.",
                self._token.at,
                Kind.BUDGET,
                "Split it over several steps.",
            )
        tree = self._choice()
        self._nesting -= 1
        return tree

    def _choice(self) -> Node:
        first = self._or()
        sign = self._accept("?", "if")
        if sign is None:
            return first
        if sign.text == "?":
            then = self._or()
            self._expect(":")
            return self._made(Choice, sign.at, first, then, self.expression())
        test = self._or()
        other: Node = Literal(sign.at, None)
        if self._accept("else"):
            other = self.expression()
        return self._made(Choice, sign.at, test, first, other)

    def _or(self) -> Node:
        return self._junction(("||", "or"), self._and)

    def _and(self) -> Node:
        return self._junction(("&&", "and"), self._not)

    def _junction(self, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        parts: list[Node] = [part()]
        at = self._token.at
        while self._accept(*signs):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        depth = self._depth(at, parts)
        return Junction(at, signs[0] == "&&", tuple(parts), depth=depth)

    def _not(self) -> Node:
        count, at = 0, self._token.at
        while self._accept("not"):
            count += 1
        tree = self._relation()
        return tree if count == 0 else self._negated(at, tree, count)

    def _negated(self, at: int, tree: Node, count: int) -> Node:
        # Two are one test that it is a boolean.
        for _ in range(1 if count % 2 else 2):
            tree = self._made_call("!_", at, tree)
        return tree

    def _relation(self) -> Node:
        left = self._sum()
        while True:
            at = self._token.at
            if self._is("not") and self._tokens[self._next + 1].text == "in":
                self._take()
                self._take()
                left = self._made_call("!_", at, self._made_call("in", at, left, self._sum()))
            elif self._is(*_COMPARISONS, "in"):
                sign = self._take().text
                left = self._made_call(sign, at, left, self._sum())
            elif self._is("="):
                raise self._error("One = means nothing here.", "Write == to compare.")
            else:
                return left

    def _sum(self) -> Node:
        left = self._product()
        while self._is("+", "-", "~"):
            sign = self._take()
            left = self._made_call(sign.text, sign.at, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._unary()
        while self._is("*", "/", "%", "**"):
            sign = self._take()
            if sign.text == "**":
                raise self._error(
                    "There is no power in CEL.", "Multiply, or use FUNCTION.", sign.at
                )
            left = self._made_call(sign.text, sign.at, left, self._unary())
        return left

    def _unary(self) -> Node:
        at, count = self._token.at, 0
        while self._accept("!"):
            count += 1
        if count:
            return self._negated(at, self._unary_operand(), count)
        while self._accept("-"):
            count += 1
        if not count:
            return self._postfix()
        tree = self._unary_operand()
        if isinstance(tree, Literal) and type(tree.value) in (int, float):
            value = tree.value * (-1) ** count
            return Literal(at, value)
        for _ in range(1 if count % 2 else 2):
            tree = self._made_call("-_", at, tree)
        return tree

    def _unary_operand(self) -> Node:
        if self._is("!", "-"):
            raise self._error("Signs ! and - cannot be mixed.", "Use brackets.")
        return self._postfix()

    def _postfix(self) -> Node:
        tree = self._primary()
        while True:
            at = self._token.at
            if self._accept("."):
                tree = self._member(tree)
            elif self._accept("["):
                key = self.expression()
                self._expect("]")
                tree = self._made(Index, at, tree, key)
            elif self._accept("|"):
                tree = self._filter(tree)
            elif self._accept("is"):
                tree = self._test(tree, at)
            else:
                return tree

    def _member(self, target: Node) -> Node:
        token = self._take()
        if token.kind != "word":
            raise self._error("A name comes after the dot.", "Or write ['name'].", token.at)
        name = token.text
        if isinstance(target, Name) and target.name == "steps":
            return self._made(Select, token.at, target, self._step_id(token))
        if self._accept("("):
            return self._method(target, token)
        return self._made(Select, token.at, target, name)

    def _step_id(self, token: Token) -> str:
        """Return the id of a step, which may have dashes: all that stands without a blank."""
        name, end = token.text, token.at + len(token.text)
        while self._token.at == end and (
            self._is("-")
            or (self._token.kind in ("word", "number") and "." not in self._token.text)
        ):
            part = self._take()
            name, end = name + part.text, part.at + len(part.text)
        return name

    def _method(self, target: Node, token: Token) -> Node:
        name = token.text
        if name in MACROS:
            return self._macro(target, token)
        arguments = self._arguments(")")
        if isinstance(target, Name) and target.name in _NAMESPACES:
            return self._function(f"{target.name}.{name}", token.at, arguments)
        return self._function(name, token.at, [target, *arguments], is_method=True)

    def _macro(self, target: Node, token: Token) -> Node:
        arguments = self._arguments(")")
        most = 3 if token.text == "map" else 2
        if not 2 <= len(arguments) <= most or not isinstance(arguments[0], Name):
            raise self._error(
                f"{token.text} takes a name and what to do with it.",
                f"Such as items.{token.text}(x, x.name).",
                token.at,
            )
        test = arguments[1] if len(arguments) == 3 else None
        depth = self._depth(token.at, [target, *arguments])
        return Comprehension(
            token.at, token.text, target, arguments[0].name, arguments[-1], test, depth=depth
        )

    def _filter(self, target: Node) -> Node:
        token = self._take()
        if token.kind != "word":
            raise self._error("A filter's name comes after |.", "Write || for 'or'.", token.at)
        arguments = self._arguments(")") if self._accept("(") else []
        if token.text in ("default", "d"):
            if len(arguments) > 2:
                raise self._error("default takes one value.", "", token.at)
            other = arguments[0] if arguments else Literal(token.at, "")
            return self._made(Default, token.at, target, other)
        function = FILTERS.get(token.text)
        if function is None:
            known = [*FILTERS, "default"]
            raise ExpressionError(
                f"There is no filter {token.text!r}.",
                token.at,
                Kind.UNKNOWN,
                nearest(token.text, known),
            )
        return self._function(function, token.at, [target, *arguments], is_method=True)

    def _test(self, target: Node, at: int) -> Node:
        negated = self._accept("not") is not None
        token = self._take()
        if token.text in ("defined", "undefined"):
            tree: Node = self._made(Has, at, target)
            negated ^= token.text == "undefined"
        elif token.text in ("true", "True", "false", "False"):
            tree = self._made_call("==", at, target, Literal(at, token.text.lower() == "true"))
        elif token.text in _TESTS or token.text == "None":
            kind = _TESTS.get(token.text, "null")
            tree = self._made_call("is", at, target, Literal(token.at, kind))
        else:
            raise self._error(
                f"{token.text!r} is no test.", nearest(token.text, [*_TESTS, "defined"]), token.at
            )
        return self._made_call("!_", at, tree) if negated else tree

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "number" and token.value == 2**63:
            before = self._tokens[self._next - 2].text if self._next > 1 else ""
            if before != "-":
                raise self._error("The number does not fit into 64 bits.", "", token.at)
        if token.kind in ("number", "string"):
            return Literal(token.at, token.value)
        if token.kind == "word":
            return self._word(token)
        if token.text == "(":
            tree = self.expression()
            self._expect(")")
            return tree
        if token.text == "[":
            items = self._arguments("]")
            return Items(token.at, tuple(items), depth=self._depth(token.at, items))
        if token.text == "{":
            return self._pairs(token)
        if token.kind == "end":
            raise self._error("The expression ends too early.", "Write a value.", token.at)
        raise self._error(f"{token.text!r} begins no value.", "Write a value before it.", token.at)

    def _word(self, token: Token) -> Node:
        if token.text in CONSTANTS:
            return Literal(token.at, CONSTANTS[token.text])
        if token.text in _RESERVED:
            raise self._error(f"{token.text!r} begins no value.", "Write a value.", token.at)
        if not self._accept("("):
            return Name(token.at, token.text)
        arguments = self._arguments(")")
        if token.text == "has":
            if len(arguments) != 1 or not isinstance(arguments[0], Select | Index):
                raise self._error("has takes a field.", "Such as has(params.name).", token.at)
            return self._made(Has, token.at, arguments[0])
        return self._function(token.text, token.at, arguments)

    def _pairs(self, start: Token) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            key = self.expression()
            self._expect(":")
            pairs.append((key, self.expression()))
            if not self._is("}"):
                self._expect(",")
        depth = self._depth(start.at, [part for pair in pairs for part in pair])
        return Pairs(start.at, tuple(pairs), depth=depth)

    def _arguments(self, end: str) -> list[Node]:
        arguments: list[Node] = []
        while not self._accept(end):
            arguments.append(self.expression())
            if not self._is(end):
                self._expect(",")
        return arguments

    def _function(
        self, name: str, at: int, arguments: list[Node], *, is_method: bool = False
    ) -> Node:
        if name not in FUNCTIONS:
            shown = name if not is_method else f".{name}"
            raise ExpressionError(
                f"There is no function {shown!r}.",
                at,
                Kind.UNKNOWN,
                nearest(name, [known for known in FUNCTIONS if known[0].isalpha()]),
            )
        if not accepts(name, len(arguments)):
            raise self._error(f"{name} does not take {len(arguments)} values.", "", at)
        return self._made_call(name, at, *arguments)

    def _made_call(self, function: str, at: int, *arguments: Node) -> Node:
        return Call(at, function, arguments, depth=self._depth(at, arguments))

    def _made(self, kind: Callable[..., Node], at: int, *values: Any) -> Node:
        depth = self._depth(at, [value for value in values if isinstance(value, Node)])
        return kind(at, *values, depth=depth)

    def _depth(self, at: int, parts: Sequence[Node]) -> int:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > MAX_DEPTH:
            raise ExpressionError(
                f"The expression is more than {MAX_DEPTH} deep.",
                at,
                Kind.BUDGET,
                "Split it over several steps.",
            )
        return depth
