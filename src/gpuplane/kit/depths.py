"""How deep JSON may nest: one limit for bodies, events, texts, and what steps and jobs leave."""

MAX_JSON_DEPTH = 64
"""Objects and lists inside one another; what writes answers out gives up at some 250."""


def is_deeper(value: object, levels: int = MAX_JSON_DEPTH) -> bool:
    """Return whether objects and lists lie inside one another deeper than so many levels."""
    level: list[object] = [value]
    for _ in range(levels + 1):
        level = [inner for outer in level for inner in parts_of(outer)]
        if not level:
            return False
    return True


def parts_of(value: object) -> list[object]:
    """Return what lies directly inside a JSON value."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
