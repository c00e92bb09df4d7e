"""Translates Argo's three languages into CEL: `{{name}}`, `when` (govaluate) and `{{=…}}` (expr).

Argo puts text into text before anything is evaluated; here a reference stays a value, and what it
is compared with decides how. Sources: argo-workflows docs/variables.md, docs/conditional.
"""

import re
from collections.abc import Callable, Iterator

from gpuplane.core.imports.results import Malformed
from gpuplane.core.imports.values import Const, Expr, Value, cel_of, joined, quoted

Lookup = Callable[[str], Value]
"""The value of a name such as `inputs.parameters.message`; raises Malformed for others."""

_WHEN = re.compile(
    r"\s*(?:(?P<op>==|!=|>=|<=|=~|!~|&&|\|\||[<>()!])|(?P<quoted>'[^']*'|\"[^\"]*\")"
    r"|(?P<bare>(?:\{\{.*?\}\}|[^\s()!=<>&|'\"~]|=(?![=~]))+))",
    re.DOTALL,
)
_EXPR = re.compile(
    r"\s*(?:(?P<op>\?\?|==|!=|>=|<=|&&|\|\||[-+*/%<>()!?:,\[\]])"
    r"|(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<word>[A-Za-z_]\w*(?:(?:\.[A-Za-z_]\w*)|(?:\[\s*(?:'[^']*'|\"[^\"]*\")\s*\]))*))"
)
_PART = re.compile(r"\.?([A-Za-z_]\w*)|\[\s*(?:'([^']*)'|\"([^\"]*)\")\s*\]")
_FUNCTIONS = {"asInt": "int", "asFloat": "double", "string": "string", "int": "int",
              "float": "double", "toJson": "json.encode", "fromJson": "json.decode",
              "len": "size", "lower": "lower", "upper": "upper", "trim": "trim"}  # fmt: skip
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!", "contains": None, "startsWith": None,
                   "endsWith": None, "matches": None}  # fmt: skip
_ROOTS = ("inputs", "steps", "tasks", "workflow", "item", "outputs", "status", "retries",
          "lastRetry", "pod", "node")  # fmt: skip
_JSONPATH = re.compile(
    r"\(\s*([A-Za-z_][\w.\[\]'\"-]*)\s*,\s*(['\"])\$((?:\.[A-Za-z_][\w-]*|\[\d+\]|\['[^']*'\])*)\2\s*\)"
)
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]|\['([^']*)'\]")
MAX_CHARACTERS = 8_000


def resolved(text: str, lookup: Lookup, place: str) -> Value:
    """Return a text with its tags replaced; always text.

    Raises:
        Malformed: If a tag names what is not known.
    """
    if "{{" not in text:
        return Const(text)
    parts: list[Value] = []
    at = 0
    for start, end in tags_in(text):
        parts.append(Const(text[at:start]))
        parts.append(_tag(text[start + 2 : end - 2], lookup, place))
        at = end
    return joined([*parts, Const(text[at:])])


def tags_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each tag of a text begins and ends, its braces included."""
    start = text.find("{{")
    while start >= 0:
        end = text.find("}}", start + 2)
        if end < 0:
            return
        yield start, end + 2
        start = text.find("{{", end + 2)


def without_tags(text: str, instead: str) -> str:
    """Return a text with another in place of each tag."""
    parts, at = [], 0
    for start, end in tags_in(text):
        parts += [text[at:start], instead]
        at = end
    return "".join([*parts, text[at:]])


def _tag(inner: str, lookup: Lookup, place: str) -> Value:
    if inner.startswith("="):
        return Expr(f"string({expression(inner[1:], lookup, place)})")
    return _named(inner.strip(), lookup, place)


def _named(name: str, lookup: Lookup, place: str) -> Value:
    try:
        return lookup(name)
    except Malformed as error:
        raise Malformed(place, error.reason) from None


def condition(text: str, lookup: Lookup, place: str) -> str:
    """Return a `when` as CEL.

    Raises:
        Malformed: If it cannot be read.
    """
    plain = text.strip()
    if plain.startswith("{{=") and next(tags_in(plain), None) == (0, len(plain)):
        return expression(plain[3:-2], lookup, place)
    if len(plain) > MAX_CHARACTERS:
        raise Malformed(place, "The condition is too long.")
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(plain):
        found = _WHEN.match(plain, at)
        if found is None:
            raise Malformed(place, f"The condition cannot be read from {plain[at : at + 20]!r} on.")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
        at = found.end()
    return _condition_of(tokens, lookup, place)


def _condition_of(tokens: list[tuple[str, str]], lookup: Lookup, place: str) -> str:
    made: list[str] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        if kind == "op":
            made.append(text)
            at += 1
            continue
        left = _operand(kind, text, lookup, place)
        following = tokens[at + 1][1] if at + 1 < len(tokens) and tokens[at + 1][0] == "op" else ""
        if following in ("==", "!=", ">", "<", ">=", "<=", "=~", "!~"):
            if at + 2 >= len(tokens) or tokens[at + 2][0] == "op":
                raise Malformed(place, f"{following} has nothing on its right.")
            made.append(_compared(left, following, _operand(*tokens[at + 2], lookup, place)))
            at += 3
        else:
            made.append(_truth(left))
            at += 1
    _check_balance(made, place)
    return " ".join(made)


def _check_balance(made: list[str], place: str) -> None:
    depth, wants_operand = 0, True
    for each in made:
        depth += (each == "(") - (each == ")")
        if each in ("&&", "||", ")"):
            is_wrong = wants_operand
            wants_operand = each != ")"
        elif each in ("!", "("):
            is_wrong = not wants_operand
        else:
            is_wrong = not wants_operand or each in ("==", "!=", "<", ">", "<=", ">=", "=~", "!~")
            wants_operand = False
        if is_wrong or depth < 0:
            raise Malformed(place, f"The condition cannot be read at {each[:40]!r}.")
    if depth or wants_operand:
        raise Malformed(place, "The condition ends too early.")


def _operand(kind: str, text: str, lookup: Lookup, place: str) -> Value:
    return resolved(text[1:-1] if kind == "quoted" else text, lookup, place)


def _compared(left: Value, sign: str, right: Value) -> str:
    if sign in ("=~", "!~"):
        matches = f"string({cel_of(left)}).matches({cel_of(right)})"
        return matches if sign == "=~" else f"!({matches})"
    if sign in ("<", ">", "<=", ">="):
        if _is_word(left) or _is_word(right):
            return f"string({cel_of(left)}) {sign} string({cel_of(right)})"
        return f"double({cel_of(left)}) {sign} double({cel_of(right)})"
    # Both sides are text by the time Argo compares them, a number as it was written.
    return f"string({cel_of(left)}) {sign} string({cel_of(right)})"


def _is_word(value: Value) -> bool:
    """Return whether a value is known to be no number."""
    if isinstance(value, Expr):
        return False
    try:
        float(str(value.value))
    except ValueError:
        return True
    return False


def _truth(value: Value) -> str:
    if isinstance(value, Const):
        return "true" if str(value.value).strip().lower() in ("true", "1") else "false"
    return f'string({value.cel}) == "true"'


def expression(text: str, lookup: Lookup, place: str) -> str:
    """Return an expression of the expr language as CEL, as far as the two are alike.

    Raises:
        Malformed: If it uses more than names, operators and a few functions.
    """
    if len(text) > MAX_CHARACTERS:
        raise Malformed(place, "The expression is too long.")
    made: list[str] = []
    plain, at = text.strip(), 0
    coalesced = False
    while at < len(plain):
        found = _EXPR.match(plain, at)
        if found is None:
            raise Malformed(
                place, f"The expression cannot be read from {plain[at : at + 20]!r} on."
            )
        kind = str(found.lastgroup)
        token, at = found[kind], found.end()
        if kind == "op" and token == "??":
            coalesced = True
            made.append("??")
        elif kind == "quoted":
            made.append(quoted(re.sub(r"\\(.)", r"\1", token[1:-1])))
        elif kind == "word" and token == "jsonpath":
            call = _JSONPATH.match(plain, at)
            if call is None:
                raise Malformed(place, "jsonpath is understood with names and indexes only.")
            at = call.end()
            made.append(_jsonpath(call, lookup, place))
        elif kind == "word":
            is_call = plain[at : at + 1] == "("
            made.append(_word(token, lookup, place, is_call=is_call))
        else:
            made.append(token)
    if not made:
        raise Malformed(place, "The expression is empty.")
    return _coalesced(made, place) if coalesced else " ".join(made)


def _jsonpath(call: re.Match[str], lookup: Lookup, place: str) -> str:
    """Return a path of names and indexes as CEL over the text's JSON."""
    cel = f"json.decode({_word(call[1], lookup, place, is_call=False)})"
    for name, index, key in _STEP.findall(call[3]):
        cel += f"[{index}]" if index else f"[{quoted(name or key)}]"
    return cel


def _coalesced(made: list[str], place: str) -> str:
    """Return `a ?? b ?? c`, which is all that is understood of it."""
    if made[1::2] != ["??"] * (len(made) // 2) or len(made) % 2 == 0:
        raise Malformed(place, "?? is understood between plain values only.")
    cel = made[-1]
    for each in reversed(made[:-1:2]):
        cel = f"({each} | default({cel}))"
    return cel


def _word(token: str, lookup: Lookup, place: str, *, is_call: bool) -> str:
    parts = [one or two or three for one, two, three in _PART.findall(token)]
    if parts[0] in _ROOTS and not is_call:
        return cel_of(_named(".".join(parts), lookup, place))
    if token in ("true", "false"):
        return token
    if token in ("nil", "null"):
        return "null"
    if is_call and token in _FUNCTIONS:
        return _FUNCTIONS[token]
    if _WORD_OPERATORS.get(token):
        return str(_WORD_OPERATORS[token])
    raise Malformed(place, f"{token[:60]!r} of the expression language is not known here.")
