"""Seals the sensitive outputs of jobs anew after a rotation of the sealing key."""

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs.repository import rewrapping as repository
from gpuplane.domains.jobs.repository.rewrapping import OutputKey
from gpuplane.kit.sealing import SealingKeys

OUTPUTS_CONTEXT = "jobs/outputs"
"""What a sensitive output is sealed for."""
REWRAP_BATCH = 200


def rewrap_outputs(
    session: WriteSession, sealing: SealingKeys, after: OutputKey | None
) -> tuple[int, OutputKey | None]:
    """Seal a batch of outputs by the current key.

    Args:
        session: The transaction.
        sealing: The keys.
        after: The last output of the batch before, None for the first batch.

    Returns:
        How many outputs were sealed anew, and where to go on, or None at the end.
    """
    batch = repository.sealed_after(session, after, REWRAP_BATCH)
    count = 0
    for key, sealed in batch:
        fresh = sealing.rewrap(sealed, OUTPUTS_CONTEXT)
        if fresh != sealed and repository.store_rewrapped(session, key, sealed, fresh):
            count += 1
    return count, batch[-1][0] if len(batch) == REWRAP_BATCH else None
