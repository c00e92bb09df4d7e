"""Reads YAML that anybody may have written: plain values only, and within limits.

Never makes an object of a class, follows no tag, and counts before it builds: an alias that is
used a billion times over is refused from its outline. Knows nothing of what the documents mean.
"""

from typing import Any

import yaml

MAX_BYTES = 8 << 20
MAX_NODES = 500_000
"""Scalars, lists and mappings of a file, those that aliases repeat counted each time."""
MAX_DEPTH = 60
MAX_DOCUMENTS = 200


class UnreadableYaml(ValueError):
    """The text is no YAML that can be taken; the message says why and where."""


class PlainLoader(yaml.SafeLoader):
    """The safe loader, stricter: a key stands once, and instants are left as text.

    A date of YAML has no place in JSON, and of two values under one key a reader keeps either. A
    lone `=` is text too, as Kubernetes reads it: charts have it in lists of operators, and the safe
    loader knows its type and no value of it.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping's outline; a ComposerError names the key that stands twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:  # before aliases are merged in, which may well be overridden
            if not isinstance(key, yaml.ScalarNode):
                continue
            plain = key.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
            value = key.value if plain else self.construct_object(key)
            name = _key(value) if isinstance(value, str | int | float) else str(value)
            if name in lines:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {name!r} stands twice, first in line {lines[name]}",
                    key.start_mark,
                )  # fmt: skip
            lines[name] = key.start_mark.line + 1
        return node


_LEFT_AS_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _LEFT_AS_TEXT]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_documents(text: str, *, most_nodes: int = MAX_NODES) -> list[Any]:
    """Return the documents of a YAML text as JSON values; empty ones are left out.

    Args:
        text: YAML or JSON.
        most_nodes: Values that a document may have, aliases counted.

    Raises:
        UnreadableYaml: If it is no YAML, too large, too deep, or holds what JSON does not.
    """
    if len(text) > MAX_BYTES:
        raise UnreadableYaml(f"The text is longer than {MAX_BYTES} characters.")
    found: list[Any] = []
    loader = None
    try:
        loader = PlainLoader(text)
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            _measure(node, most_nodes)
            value = loader.construct_document(node)
            if value is not None:
                found.append(_as_json(value))
            if len(found) > MAX_DOCUMENTS:
                raise UnreadableYaml(f"There are more than {MAX_DOCUMENTS} documents.")
    except yaml.YAMLError as error:
        raise UnreadableYaml(_problem(error)) from None
    except RecursionError:
        raise UnreadableYaml("It is nested too deeply.") from None
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, UnreadableYaml):
            raise
        raise UnreadableYaml(f"A value in it cannot be read: {error}.") from None
    finally:
        if loader is not None:
            loader.dispose()
    return found


def _measure(root: yaml.Node, most_nodes: int) -> None:
    """Refuse a document by its outline.

    Raises:
        UnreadableYaml: If it has too many nodes, is too deep, or holds itself.
    """
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size_of(node: yaml.Node, depth: int) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if depth > MAX_DEPTH:
            raise UnreadableYaml(f"It is nested more than {MAX_DEPTH} deep.")
        if id(node) in open_nodes:
            raise UnreadableYaml("An alias in it names what it stands in.")
        open_nodes.add(id(node))
        total = 1
        for part in _parts(node):
            total += size_of(part, depth + 1)
            if total > most_nodes:
                raise UnreadableYaml(f"It has more than {most_nodes} values, aliases counted.")
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    size_of(root, 0)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return []


def _as_json(value: Any) -> Any:
    """Return a value without what JSON does not know.

    Raises:
        UnreadableYaml: If there is any.
    """
    if isinstance(value, dict):
        return {_key(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise UnreadableYaml("A number in it is infinite, or none.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UnreadableYaml("A number in it has more than 64 bits.")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableYaml("A text in it holds half characters.") from None
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UnreadableYaml(f"A value in it is a {type(value).__name__}, which JSON does not know.")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise UnreadableYaml("A key in it is no text.")


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return f"It is no YAML: {problem}{place}."
