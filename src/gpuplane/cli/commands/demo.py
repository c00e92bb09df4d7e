"""`gpuplane demo`: fill the simulated cluster, so that there is something to look at."""

from typing import Any

import click

from gpuplane.cli.backlog import CLUSTER, LABEL, TENANTS, DemoJob, backlog, quota_body
from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.lookups import OVER
from gpuplane.cli.output import note, paint
from gpuplane.cli.progress import track

SIZES = {"small": 40, "medium": 80, "large": 300}


class Size(click.ParamType[int]):
    """`small`, `medium`, `large` or a number of jobs."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of jobs."""
        if value in SIZES:
            return SIZES[value]
        if str(value).isdigit() and 1 <= int(value) <= 20_000:
            return int(value)
        self.fail(f"{value!r} is neither small, medium, large nor 1 to 20000.", param, ctx)


@click.command()
@click.option(
    "--size",
    type=Size(),
    default="medium",
    show_default=True,
    help="small (40), medium (80), large (300) or a number of jobs.",
)
@click.option("--no-quotas", is_flag=True, help="Leave the quotas of the cluster as they are.")
@click.option("--stop", is_flag=True, help="Cancel what is left of the demo, and leave.")
def demo(size: int, *, no_quotas: bool, stop: bool) -> None:
    """Submit a lively backlog of three tenants to the simulated cluster `demo`.

    Nothing is executed: these jobs pretend. Running it again while the backlog is unfinished
    submits what is missing of it; once all is over a new round begins.
    """
    client = Client()
    if stop:
        _stop(client)
        return
    round_number = _round(client)
    tenants = _ensure_tenants(client)
    if not no_quotas:
        _ensure_quotas(client)
    jobs = backlog(size, round_number)
    made: dict[str, str] = {}
    for job in track(jobs, len(jobs), "jobs of the demo"):
        made[job.name] = _submit(client, job, tenants[job.tenant], made)
    _tell(client, round_number)


def _round(client: Client) -> int:
    """Return the round that is unfinished, else the next one."""
    newest = 0
    unfinished: int | None = None
    for job in _jobs(client):
        number = int(job["labels"][LABEL].rpartition("-")[2])
        newest = max(newest, number)
        if job["status"] not in OVER:
            unfinished = number if unfinished is None else max(unfinished, number)
    return unfinished if unfinished is not None else newest + 1


def _jobs(client: Client) -> list[dict[str, Any]]:
    rows = client.items("/jobs", cluster=CLUSTER)
    return [row for row in rows if LABEL in row["labels"]]


def _ensure_tenants(client: Client) -> dict[str, str]:
    known = {each["name"]: each["id"] for each in client.items("/tenants")}
    for tenant in TENANTS:
        if tenant.name not in known:
            body = {"name": tenant.name, "display_name": tenant.display_name}
            known[tenant.name] = client.post("/tenants", body)["id"]
    return known


def _ensure_quotas(client: Client) -> None:
    """Give each tenant a queue with a quota; whoever has none keeps an open one."""
    path = f"/clusters/{CLUSTER}"
    known = {row["name"] for row in client.rows(f"{path}/quotas") if not row["isDefault"]}
    if "default" not in known:
        if known:
            return  # somebody declared queues of their own here: theirs stay as they are
        client.post(f"{path}/quotas", {"name": "default", "coversEverything": True})
    doors = {(row["tenant"], row["name"]) for row in client.rows(f"{path}/queues")}
    for tenant in TENANTS:
        if tenant.name not in known:
            client.post(f"{path}/quotas", {"name": tenant.name, **quota_body(tenant)})
        if (tenant.name, "default") not in doors:
            door = {"name": "default", "tenant": tenant.name, "clusterQueue": tenant.name}
            client.post(f"{path}/queues", door)


def _submit(client: Client, job: DemoJob, tenant_id: str, made: dict[str, str]) -> str:
    body = {**job.body, "tenant_id": tenant_id, "project": "default"}
    if job.after:
        body["after"] = [{"job_id": made[name]} for name in job.after]
    try:
        return str(client.post("/jobs", body, key=body["idempotency_key"])["id"])
    except ApiError as error:
        raise CliError(
            f"The demo's job {job.name} was refused: {error.message}",
            fix=error.fix,
            code=Exit(error.exit_code),
        ) from error


def _stop(client: Client) -> None:
    left = [job for job in _jobs(client) if job["status"] not in OVER]
    for job in track(left, len(left), "cancelling"):
        try:
            client.delete(f"/jobs/{job['id']}")
        except ApiError as error:
            if error.status != 409:
                raise
    note(f"{len(left)} jobs of the demo were cancelled.")


def _tell(client: Client, round_number: int) -> None:
    rows = list(client.items("/jobs", cluster=CLUSTER, label=f"{LABEL}=round-{round_number}"))
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    note(f"{len(rows)} jobs on {CLUSTER} (simulated): {told}")
    for line in (
        "gpuplane queue", "gpuplane timeline demo", "gpuplane why pretrain-70b",
        "gpuplane fleet demo", "gpuplane usage --by tenant",
    ):  # fmt: skip
        note(f"  try: {paint(line, 'bold', err=True)}")
