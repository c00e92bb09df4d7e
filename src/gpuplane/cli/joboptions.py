"""Every field of a job as an option of `run`, grouped for its help, and the body they make.

One table: an option names the field it sets, so help, body and the test that no field is missing
read the same lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpuplane.cli.parameters import DURATION, GIB, INSTANT, PAIR

WHAT, NEEDS, COPIES, WHERE, WHEN = "What runs", "What it needs", "How many", "Where", "When"
RANK, AGAIN, MONEY = "Priority", "Failures", "Money and labels"
SOURCE, SIMULATED = "Source", "On a simulated cluster"
CLIENT = "This command"

CPUS = 1.0
MEMORY_GIB = 1.0
EPHEMERAL_GIB = 1.0
"""Small on purpose: a first command must fit on a laptop, whatever the API's own defaults are."""


class JobOption(click.Option):
    """An option with the field of the job it sets and the section of the help it stands in."""

    def __init__(self, *args: Any, field: str = "", section: str = CLIENT, **kwargs: Any) -> None:
        """Make an option.

        Args:
            args: As for any option.
            field: The field of the job's body, dotted; empty when code reads the value.
            section: The heading in the help.
            kwargs: As for any option.
        """
        super().__init__(*args, **kwargs)
        self.field = field
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            # click has records for arguments too; the usage line shows those already.
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                section = param.section if isinstance(param, JobOption) else CLIENT
                sections.setdefault(section, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _option(section: str, field: str, *names: str, **kwargs: Any) -> JobOption:
    return JobOption(list(names), field=field, section=section, **kwargs)


def _choice(*words: str) -> click.Choice[str]:
    return click.Choice(words, case_sensitive=False)


def _options() -> list[JobOption]:
    return [
        *_what(),
        *_needs(),
        *_copies(),
        *_where(),
        *_when(),
        *_rank(),
        *_again(),
        *_money(),
        *_source(),
        *_simulated(),
    ]


def _what() -> list[JobOption]:
    o = _option
    return [
        o(WHAT, "name", "--name", "-n", help="Name; made from the command unless given."),
        o(WHAT, "job_type", "--type", "job_type", type=_choice("service", "batch", "training"),
          help="Kind of work.  [default: batch]"),
        o(WHAT, "deployment_type", "--deployment-type",
          type=_choice("process", "docker", "helm", "model"),
          help="How it is deployed; docker with --image, else process."),
        o(WHAT, "spec.image", "--image", help="Container image."),
        o(WHAT, "spec.env", "--env", "-e", "env", type=PAIR, multiple=True,
          help="Environment variable; repeatable."),
        o(WHAT, "", "--env-file", type=click.File(), help="Lines of NAME=VALUE."),
        o(WHAT, "spec.secrets", "--secret", "secrets", multiple=True, metavar="NAME[:ENV|:@PATH]",
          help="A secret as a variable (NAME in capitals unless ENV is given) or a file."),
        o(WHAT, "spec.workspace_digest", "--workdir", type=click.Path(exists=True, file_okay=False),
          help="Send this folder as the job's working directory (minus .gpuplaneignore)."),
        o(WHAT, "spec.working_dir", "--chdir", help="Start in this folder of it."),
        o(WHAT, "spec.mounts", "--mount", "mounts", multiple=True, metavar="VOLUME:PATH[:ro]",
          help="Named volume at a path."),
        o(WHAT, "spec.artifacts", "--artifact", "artifacts", multiple=True,
          help="Path to keep after the end."),
        o(WHAT, "spec.port", "--port", type=int,
          help="Port a service listens on; 0 chooses one. On Kubernetes it is 8080 unless named, "
          "and a replica is ready once it takes connections there."),
        o(WHAT, "spec.health.path", "--health-path",
          help="HTTP path that says ready."),
        o(WHAT, "spec.health.port", "--health-port", type=int, help="Its port, if another."),
        o(WHAT, "spec.health.interval_s", "--health-interval", type=float, help="Seconds."),
        o(WHAT, "spec.health.timeout_s", "--health-timeout", type=float, help="Seconds."),
        o(WHAT, "spec.health.failure_threshold", "--health-failures", type=int,
          help="Failures in a row that mean unhealthy."),
        o(WHAT, "spec.health.start_period_s", "--health-start-period", type=float,
          help="Seconds it may take to become ready."),
        o(WHAT, "spec.restart", "--restart", type=_choice("Never", "OnFailure", "Always"),
          help="When a process is started again within one attempt."),
        o(WHAT, "spec.grace_s", "--grace", type=DURATION, help="Between SIGTERM and SIGKILL."),
        o(WHAT, "spec.seed", "--seed", type=int, help="Handed to the job as GPUPLANE_SEED."),
    ]  # fmt: skip


def _needs() -> list[JobOption]:
    o = _option
    return [
        o(NEEDS, "gpu_count", "--gpus", type=click.IntRange(min=0), help="GPUs a replica."),
        o(NEEDS, "gpu_type", "--gpu-model", help="Such as H100, A100-80GB, L4."),
        o(NEEDS, "resources.gpu_memory_gb", "--gpu-memory", type=GIB, help="At least, per GPU."),
        o(NEEDS, "resources.gpu_architecture", "--gpu-architecture", help="Such as hopper."),
        o(NEEDS, "resources.gpu_share", "--gpu-share", type=float,
          help="A share of one GPU, such as 0.5."),
        o(NEEDS, "resources.mig_profile", "--mig", help="A MIG profile such as 1g.10gb."),
        o(NEEDS, "cpu_cores", "--cpus", type=float, default=CPUS, show_default=True,
          help="CPU cores."),
        o(NEEDS, "memory_gb", "--memory", type=GIB, default=MEMORY_GIB,
          help="Memory.  [default: 1G]"),
        o(NEEDS, "storage_gb", "--storage", type=int, help="GiB of lasting storage."),
        o(NEEDS, "resources.ephemeral_storage_gb", "--ephemeral-storage", type=GIB,
          default=EPHEMERAL_GIB, help="Scratch space.  [default: 1G]"),
        o(NEEDS, "resources.rdma_fabric", "--rdma-fabric", help="`any`, or a fabric's name."),
    ]  # fmt: skip


def _copies() -> list[JobOption]:
    o = _option
    return [
        o(COPIES, "replicas.count", "--replicas", type=int, help="Copies; all start together."),
        o(COPIES, "replicas.minimum", "--min-available", type=int,
          help="The least that may start, without --gang."),
        o(COPIES, "replicas.gang", "--gang/--no-gang", default=None,
          help="All replicas or none.  [default: gang]"),
        o(COPIES, "replicas.min", "--min-replicas", type=int, help="A service shrinks to this."),
        o(COPIES, "replicas.max", "--max-replicas", type=int, help="A service grows to this."),
        o(COPIES, "replicas.scale_to_zero", "--scale-to-zero", is_flag=True, default=None,
          help="A service may have none."),
        o(COPIES, "array.size", "--array", type=int, help="Many jobs alike, each with its index."),
        o(COPIES, "array.limit", "--array-limit", type=int, help="How many of them at a time."),
    ]  # fmt: skip


def _where() -> list[JobOption]:
    o = _option
    return [
        o(WHERE, "cluster", "--cluster", help="Cluster; the best real one unless given."),
        o(WHERE, "project", "--project", "-p", help="Project; yours unless given."),
        o(WHERE, "tenant_id", "--tenant", help="Tenant of the project."),
        o(WHERE, "queue", "--queue", help="Local queue."),
        o(WHERE, "placement.topology.preference", "--topology",
          type=_choice("none", "nvlink", "same_numa", "same_pcie"),
          help="Links wanted between its GPUs."),
        o(WHERE, "placement.topology.required", "--topology-required", is_flag=True, default=None,
          help="Rather wait than run without them."),
        o(WHERE, "placement.spreading", "--spreading", type=_choice("any", "same_node", "spread"),
          help="How replicas lie over nodes."),
        o(WHERE, "placement.network.level", "--network-level", type=_choice("rack", "block"),
          help="Part of the network its replicas should share."),
        o(WHERE, "placement.network.mode", "--network-mode",
          type=_choice("required", "preferred", "balanced"),
          help="Rather wait, prefer it, or the same number in each.  [default: preferred]"),
        o(WHERE, "placement.data", "--data", "data", multiple=True, metavar="NAME",
          help="Data set it reads; nodes that have it at hand are preferred."),
        o(WHERE, "placement.co_locate_with", "--near", "near", multiple=True, metavar="JOB",
          help="On the nodes of that job."),
        o(WHERE, "placement.separate_from", "--apart-from", "apart_from", multiple=True,
          metavar="JOB", help="On other nodes than that job."),
        o(WHERE, "placement.node_selector", "--node-selector", type=PAIR, multiple=True,
          help="Label that nodes must have."),
        o(WHERE, "placement.tolerations", "--toleration", "tolerations", multiple=True,
          metavar="KEY[=VALUE][:EFFECT]", help="Taint it may run on."),
    ]  # fmt: skip


def _when() -> list[JobOption]:
    o = _option
    return [
        o(WHEN, "estimated_duration_seconds", "--duration", type=DURATION,
          help="How long it should take."),
        o(WHEN, "max_duration_seconds", "--max-duration", type=DURATION, help="Stopped after it."),
        o(WHEN, "deadline", "--deadline", type=INSTANT, help="When it must be over (or +2h)."),
        o(WHEN, "deadline_action", "--deadline-action", type=_choice("warn", "cancel"),
          help="When it is missed."),
        o(WHEN, "scheduled_start", "--start-at", type=INSTANT, help="Not before (or +2h)."),
        o(WHEN, "window", "--time-window", metavar="HH:MM-HH:MM[@ZONE]",
          help="Only then each day; the zone is UTC unless given."),
        o(WHEN, "window.weekdays", "--weekdays", metavar="mon,tue,…",
          help="Days on which the window opens."),
        o(WHEN, "window.at_end", "--at-window-end", type=_choice("finish", "checkpoint", "stop"),
          help="What happens when it closes."),
        o(WHEN, "after", "--after", "after", multiple=True, metavar="JOB[:finished]",
          help="After that job has completed, or has finished either way."),
    ]  # fmt: skip


def _rank() -> list[JobOption]:
    o = _option
    return [
        o(RANK, "priority", "--priority",
          type=_choice("critical", "high", "normal", "low", "spot"),
          help="Class.  [default: normal]"),
        o(RANK, "preemptible", "--preemptible/--not-preemptible", default=None,
          help="Whether others may stop it; by class unless given."),
        o(RANK, "preempts_others", "--preempts-others/--preempts-nobody", default=None,
          help="Whether it may stop others; by class unless given."),
        o(RANK, "when_exceeded", "--when-exceeded", type=_choice("queue", "refuse"),
          help="When its quota is used up.  [default: queue]"),
    ]  # fmt: skip


def _again() -> list[JobOption]:
    o = _option
    return [
        o(AGAIN, "max_retries", "--retries", type=int, default=0, show_default=True,
          help="Tries after a failure."),
        o(AGAIN, "retry.delay_seconds", "--retry-delay", type=DURATION, help="Before the first."),
        o(AGAIN, "retry.max_delay_seconds", "--retry-max-delay", type=DURATION, help="At most."),
        o(AGAIN, "retry.jitter", "--retry-jitter", type=float, help="Share of chance in it."),
        o(AGAIN, "retry.on_preemption", "--retry-on-preemption/--no-retry-on-preemption",
          default=None, help="Whether it goes on after it was preempted."),
        o(AGAIN, "checkpoint.enabled", "--checkpoint/--no-checkpoint", default=None,
          help="Whether it writes checkpoints."),
        o(AGAIN, "checkpoint.checkpoint_interval", "--checkpoint-interval", type=DURATION,
          help="How often."),
        o(AGAIN, "checkpoint.checkpoint_path", "--checkpoint-path", help="Where, inside the job."),
        o(AGAIN, "checkpoint.storage_class", "--checkpoint-storage-class", help="On what."),
        o(AGAIN, "checkpoint.storage_size", "--checkpoint-storage-size", help="Such as 100Gi."),
        o(AGAIN, "checkpoint.max_checkpoints", "--max-checkpoints", type=int, help="Kept."),
    ]  # fmt: skip


def _money() -> list[JobOption]:
    o = _option
    return [
        o(MONEY, "budget_limit", "--budget", metavar="AMOUNT", help="What it may cost at most."),
        o(MONEY, "budget_action", "--budget-action", type=_choice("warn", "pause", "cancel"),
          help="When that is spent.  [default: warn]"),
        o(MONEY, "labels", "--label", "-l", "labels", type=PAIR, multiple=True, help="Label."),
        o(MONEY, "cost_centre", "--cost-centre", help="Whose bill."),
        o(MONEY, "data_classification", "--data-classification", help="Such as internal."),
    ]  # fmt: skip


def _source() -> list[JobOption]:
    o = _option
    return [
        o(SOURCE, "source_type", "--source-type", type=_choice("direct", "pipeline", "usecase"),
          help="What made the job.  [default: direct]"),
        o(SOURCE, "source_id", "--source-id", help="Its id there."),
        o(SOURCE, "pipeline_id", "--pipeline-id", help="Pipeline."),
        o(SOURCE, "pipeline_step_id", "--pipeline-step-id", help="Step of it."),
        o(SOURCE, "usecase_deployment_id", "--usecase-deployment-id", help="Use case."),
        o(SOURCE, "component_ref", "--component-ref", help="Component of a catalogue."),
        o(SOURCE, "idempotency_key", "--idempotency-key",
          help="The same key submits the same job once."),
    ]  # fmt: skip


def _simulated() -> list[JobOption]:
    o = _option
    return [
        o(SIMULATED, "spec.simulated.duration_s", "--sim-duration", type=DURATION,
          help="How long it seems to run."),
        o(SIMULATED, "spec.simulated.exit_code", "--sim-exit-code", type=int, help="How it ends."),
        o(SIMULATED, "spec.simulated.log", "--sim-log", "sim_log", multiple=True,
          help="A line it seems to print."),
        o(SIMULATED, "spec.simulated.startup_s", "--sim-startup", type=DURATION,
          help="How long it seems to start."),
        o(SIMULATED, "spec.simulated.checkpoint_every_s", "--sim-checkpoint-every", type=DURATION,
          help="How often it seems to write a checkpoint."),
        o(SIMULATED, "spec.simulated.gpu_memory_mib", "--sim-gpu-memory", type=click.IntRange(0),
          help="MiB of GPU memory that are measured of it."),
        o(SIMULATED, "spec.simulated.gpu_utilization", "--sim-gpu-utilization",
          type=click.FloatRange(0, 1), help="Mean utilisation that is measured of it, 0 to 1."),
        o(SIMULATED, "spec.simulated.outputs", "--sim-output", "sim_outputs", type=PAIR,
          multiple=True, help="An output it seems to give."),
    ]  # fmt: skip


JOB_OPTIONS: Sequence[JobOption] = _options()
FLOATS = frozenset({"spec.simulated.duration_s", "spec.simulated.startup_s",
                    "spec.simulated.checkpoint_every_s"})  # fmt: skip


def fields_set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options by the field they set; what was not given is left out."""
    found: dict[str, Any] = {}
    for option in JOB_OPTIONS:
        value = values.get(option.name or "")
        if option.field and value is not None and value != ():
            found[option.field] = float(value) if option.field in FLOATS else value
    return found


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted fields as the nested body they stand for."""
    body: dict[str, Any] = {}
    for path, value in fields.items():
        *groups, last = path.split(".")
        place = body
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return body
