"""What can be refused about usage."""

from gpuplane.kit.errors import InvalidInput


class BadUsageQuery(InvalidInput):
    """A question to the ledger that cannot be answered."""

    code = "bad_usage_query"
