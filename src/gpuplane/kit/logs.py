"""JSON logs: one object a line, with request and job ids, and never a token in them."""

import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TextIO

from gpuplane.kit.clock import instant_to_text

_context: ContextVar[dict[str, str] | None] = ContextVar("gpuplane_log_context", default=None)
_SECRET = re.compile(
    r"gp_[A-Za-z0-9_-]{20,}|gpwh_[A-Za-z0-9_-]{20,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|(?i:bearer)\s+\S+|://[^/\s:@]+:[^/\s@]+@"
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextlib.contextmanager
def log_context(**ids: str) -> Iterator[None]:
    """Put ids such as `request_id` or `job_id` on every line logged inside."""
    token = _context.set({**(_context.get() or {}), **ids})
    try:
        yield
    finally:
        _context.reset(token)


def masked(text: str) -> str:
    """Return a text with everything that looks like a credential replaced."""
    return _SECRET.sub("[masked]", text)


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
        return json.dumps(entry, default=str, ensure_ascii=False)


def setup_logging(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every log line of this process as JSON to a stream (standard error unless given)."""
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
