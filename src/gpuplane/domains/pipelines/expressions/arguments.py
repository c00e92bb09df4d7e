"""What the functions of expressions are given, and how they refuse what they do not take."""

from collections.abc import Sequence
from typing import Any

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import kind_of


def wrong(at: int, name: str, *arguments: Any) -> ExpressionError:
    """Return the error of a function or operator that does not take these types."""
    kinds = " and ".join(kind_of(each).removesuffix("_type") for each in arguments)
    return ExpressionError(
        f"{name} does not take {kinds}.", at, Kind.TYPE, "Convert with int(), double() or string()."
    )


def text_argument(at: int, name: str, value: Any, *rest: Any) -> str:
    """Return an argument that must be text."""
    if not isinstance(value, str):
        raise wrong(at, name, value, *rest)
    return value


def index_argument(at: int, name: str, value: Any) -> int:
    """Return an argument that must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(at, name, value)
    return value


def list_argument(at: int, name: str, value: Any) -> Sequence[Any]:
    """Return an argument that must be a list."""
    if not isinstance(value, list):
        raise wrong(at, name, value)
    return value
