"""Why an expression cannot be read or evaluated, with the column."""

from enum import StrEnum


class Kind(StrEnum):
    """What kind of mistake it is; programs choose by it, people read the sentence."""

    SYNTAX = "ExpressionSyntax"
    UNKNOWN = "UnknownName"
    MISSING = "MissingValue"
    TYPE = "WrongType"
    BUDGET = "ExpressionTooCostly"


class ExpressionError(Exception):
    """An expression that cannot be meant or evaluated.

    Args:
        message: A sentence.
        at: Offset in characters from the start of the text it stands in.
        kind: What kind of mistake it is.
        fix: What would mend it.
    """

    def __init__(self, message: str, at: int, kind: Kind, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.kind = kind
        self.fix = fix

    @property
    def column(self) -> int:
        """Return the column, from 1."""
        return self.at + 1

    def shifted(self, by: int) -> "ExpressionError":
        """Return the same error in a text that begins earlier."""
        return ExpressionError(self.message, self.at + by, self.kind, self.fix)

    def __str__(self) -> str:
        return f"{self.message} (column {self.column})"
