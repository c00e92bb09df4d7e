"""The proof that rows of runs agree with one another; every fault is a sentence."""

from gpuplane.core.runs.auditing import find_run_faults
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.runs.repository import auditing as repository


def check(session: ReadSession) -> list[str]:
    """Return a sentence for each broken promise about runs."""
    faults: list[str] = []
    for found in repository.walk_runs(session):
        if isinstance(found, str):
            faults.append(found)
        elif found.damage:  # what cannot be read agrees with nothing
            faults += [f"Run {found.run.id}: {each}." for each in found.damage]
        else:
            faults += find_run_faults(found.run, found.steps)
    faults += [
        f"The {what} {key} of runs cannot be read."
        for what, key in repository.list_unreadable(session)
    ]
    faults += [
        f"Step {step_id} belongs to no run that exists." for step_id in repository.orphans(session)
    ]
    for key, held, count in repository.list_oversold(session):
        faults.append(f"{held} hold a place under the key {key}, {count} may.")
    for key, holder in repository.list_idle_places(session):
        faults.append(f"{holder} is over and holds a place under the key {key}.")
    return faults
