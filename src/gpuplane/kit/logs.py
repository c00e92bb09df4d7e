"""JSON logs: one object a line, with request and job ids, and never a token in them."""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from typing import TextIO

import msgspec

from gpuplane.kit.clock import instant_to_text

_context: ContextVar[dict[str, str] | None] = ContextVar("gpuplane_log_context", default=None)
_Token = Token[dict[str, str] | None]
_SECRET = re.compile(
    r"gp_[A-Za-z0-9_-]{20,}|gpwh_[A-Za-z0-9_-]{20,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|(?i:bearer)\s+\S+|://[^/\s:@]+:[^/\s@]+@"
)
_MARKS = ("gp_", "gpwh_", "eyJ", "://")
"""One of these, or the word bearer, begins everything that `_SECRET` finds."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextlib.contextmanager
def log_context(**ids: str) -> Iterator[None]:
    """Put ids such as `request_id` or `job_id` on every line logged inside."""
    token = begin_log_context(ids)
    try:
        yield
    finally:
        end_log_context(token)


def begin_log_context(ids: Mapping[str, str]) -> _Token:
    """Put ids on every line logged from now on; for what runs once a request."""
    return _context.set({**(_context.get() or {}), **ids})


def end_log_context(token: _Token) -> None:
    """Take the ids back that `begin_log_context` put there."""
    _context.reset(token)


def masked(text: str) -> str:
    """Return a text with everything that looks like a credential replaced."""
    if not any(mark in text for mark in _MARKS) and "bearer" not in text.lower():
        return text  # nearly every line: the expression is tried at every character
    return _SECRET.sub("[masked]", text)


_ENCODER = msgspec.json.Encoder(enc_hook=str)


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, object] = {
            "at": instant_to_text(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **(_context.get() or {}),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and not name.startswith("_"):
                entry[name] = masked(value) if isinstance(value, str) else value
        if record.exc_info:
            entry["traceback"] = masked(self.formatException(record.exc_info))
        return _ENCODER.encode(entry).decode()


def setup_logging(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every log line of this process as JSON to a stream (standard error unless given)."""
    # Nothing of this is in our lines, and it is a third of what making a record takes.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the logging manual says
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # the edge writes the access log
    logging.getLogger("httpx2").setLevel("WARNING")
