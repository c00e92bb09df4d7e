"""The account of cluster queues as a table: owned, used, borrowed, lent and left. Pure."""

from collections.abc import Sequence
from typing import Any

from gpuplane.cli.output import Column


def account_lines(cluster_queues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each flavor and resource of each queue, the first with its jobs.

    What is neither owned nor used has none, unless the queue has nothing else.
    """
    lines: list[dict[str, Any]] = []
    for queue in cluster_queues:
        rows = queue["resources"]
        some = [row for row in rows if (row["nominal"], row["used"]) != ("0", "0")]
        told = some or rows[:1] or [dict.fromkeys(("flavor", "resource"), "")]
        lines += [
            {**row, "queue": queue["name"], "jobs": queue["jobs"] if n == 0 else None}
            for n, row in enumerate(told)
        ]
    return lines


def _owned(row: dict[str, Any]) -> str | None:
    """Return what is owned; a queue that covers everything has no limit."""
    amount: str | None = row.get("nominal", "")
    return "no limit" if amount is None else amount


ACCOUNT = (
    Column("QUEUE", lambda row: row["queue"]),
    Column("JOBS", lambda row: row["jobs"], right=True, spare=True),
    Column("FLAVOR", lambda row: row["flavor"]),
    Column("RESOURCE", lambda row: row["resource"].rpartition("/")[2]),
    Column("OWNED", _owned, right=True),
    Column("USED", lambda row: row.get("used"), right=True),
    Column("BORROWED", lambda row: row.get("borrowed"), right=True),
    Column("LENT", lambda row: row.get("lent"), right=True),
    Column("LEFT", lambda row: row.get("available"), right=True),
    Column("MAY BORROW", lambda row: row.get("borrowingLimit"), right=True, wide=True),
    Column("MAY LEND", lambda row: row.get("lendingLimit"), right=True, wide=True),
)
