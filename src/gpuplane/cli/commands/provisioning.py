"""Clusters that are made from here: planned, provisioned, deprovisioned, joined by scripts.

Runs the OpenTofu or Terraform binary of this machine with the caller's own credentials of the
cloud and keeps its sealed state in the home; asks no server. Registering what was made is
`clusters register`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gpuplane.cli.asking import YES, confirm, confirm_by_name
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.files import read_named, unwritable
from gpuplane.cli.output import Column, Output, note, output_option, paint, show_data, show_rows
from gpuplane.cli.parameters import DURATION
from gpuplane.cli.settings import home_of

if TYPE_CHECKING:
    from gpuplane.core.provisioning.problems import Problem
    from gpuplane.core.provisioning.specs import ClusterSpec
    from gpuplane.provisioning.clusters import Provisioner, SavedPlan

SIGNS = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "replace": ("±", "magenta"),
    "delete": ("-", "red"),
    "forget": (" ", "dim"),
}
MAX_BYTES = 1 << 20
FILE = click.option(
    "-f", "--file", "path", metavar="FILE", help="A ClusterSpecification; - for standard input."
)
TO = click.option("--to", "target", metavar="FILE", help="Write it there (0600); must not exist.")


class SpecRefused(CliError):
    """A specification that cannot be meant: the first problem, then every further one."""

    def __init__(self, problems: "Sequence[Problem]") -> None:
        """Make it of at least one problem."""
        first, *self.rest = problems
        super().__init__(first.reason, field=first.field, fix=first.fix, code=Exit.USAGE)

    def show(self, file: Any = None) -> None:
        """Write all of them to standard error."""
        super().show(file)
        for each in self.rest:
            click.echo(f"  {each.field}: {each.reason} {each.fix}", file=file, err=file is None)


def binary_options(function: Any) -> Any:
    """Add the options of commands that run the binary."""
    binary = click.option(
        "--binary",
        envvar="GPUPLANE_PROVISIONING_BINARY",
        help="OpenTofu or Terraform, by name or path; `tofu`, then `terraform` unless given.",
    )
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=DURATION,
        envvar="GPUPLANE_PROVISIONING_TIMEOUT",
        help="For what changes the cloud, such as 90m; two hours unless given.",
    )
    return binary(timeout(function))


@click.command("plan")
@FILE
@click.option(
    "--configuration", is_flag=True, help="Print the configuration that is made, and leave."
)
@binary_options
@output_option
def plan(
    path: str | None,
    binary: str | None,
    timeout_s: int | None,
    output: Output,
    *,
    configuration: bool,
) -> None:
    """Show what would make or change a cluster on EKS, AKS or GKE, and keep that plan.

    `gpuplane clusters provision NAME` carries out the plan that is kept, and none but that.
    """
    spec = _cloud_spec(path)
    if configuration:
        for content in _files(spec).values():
            click.echo(content.decode(), nl=False)
        return
    with _provisioner(binary, timeout_s) as provisioner:
        saved = provisioner.plan(spec.name, _files(spec), _document(spec))
    if output.is_data:
        show_data(_data(spec.name, saved), output)
        return
    _show(saved)
    if not saved.summary.is_empty:
        note(f"Kept as {saved.id}; carry it out: gpuplane clusters provision {spec.name}")


@click.command("provision")
@click.argument("name", required=False)
@FILE
@binary_options
@YES
def provision(
    name: str | None, path: str | None, binary: str | None, timeout_s: int | None, *, yes: bool
) -> int:
    """Make or change a cluster: by the plan kept of NAME, or by one made now of FILE.

    What it would do is shown first, and exactly that is done once you agree.
    """
    if (name is None) is (path is None):
        raise click.UsageError("Give either the NAME of a planned cluster or -f FILE.")
    with _provisioner(binary, timeout_s) as provisioner:
        if name is None:
            spec = _cloud_spec(path)
            name = spec.name
            saved = provisioner.plan(name, _files(spec), _document(spec))
        else:
            saved = provisioner.saved_plan(_checked_name(name))
            if saved.purpose != "provision":
                raise CliError(
                    f"The plan kept of {name} is not one to provision it.",
                    fix="Plan it with `gpuplane clusters plan -f FILE`.",
                    code=Exit.REFUSED,
                )
        _show(saved)
        if saved.summary.is_empty:
            return Exit.OK
        if not yes:
            note(f"The plan is kept as {saved.id}.")
        confirm("Do this?", yes=yes)
        provisioner.apply(name, saved.id)
    note(f"{name} is made. Next: gpuplane clusters register {name} --provisioned")
    return Exit.OK


@click.command("deprovision")
@click.argument("name")
@binary_options
@YES
def deprovision(name: str, binary: str | None, timeout_s: int | None, *, yes: bool) -> int:
    """Remove a cluster that was made from here, with everything in it.

    What would be deleted is shown first, and its name asked for. Take it out of the control plane
    before that, with `gpuplane clusters rm`: then its work leaves it first.
    """
    _checked_name(name)
    with _provisioner(binary, timeout_s) as provisioner:
        spec = _spec_of(provisioner.document(name))
        saved = provisioner.plan_removal(name, _files(spec))
        _show(saved)
        confirm_by_name(f"Type {name} to delete it", name, yes=yes)
        provisioner.apply(name, saved.id)
    note(f"{name} is gone.")
    return Exit.OK


@click.command("provisioned")
@output_option
def provisioned(output: Output) -> None:
    """List the clusters that are made from this home."""
    with _provisioner(None, None) as provisioner:
        rows = [
            {
                "name": each.name,
                "platform": ((each.document or {}).get("spec") or {}).get("platform"),
                "region": ((each.document or {}).get("spec") or {}).get("region"),
                "resources": each.resource_count,
                "plan": "kept" if each.has_plan else None,
                "interrupted": each.is_interrupted,
            }
            for each in provisioner.list_made()
        ]
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("PLATFORM", lambda row: row["platform"]),
        Column("REGION", lambda row: row["region"]),
        Column("RESOURCES", lambda row: row["resources"], right=True),
        Column("PLAN", lambda row: row["plan"]),
        Column("INTERRUPTED", lambda row: "yes" if row["interrupted"] else ""),
    )
    show_rows(rows, columns, output, empty="No cluster was made from this home.")


@click.command("kubeconfig")
@click.argument("name")
@TO
@click.option(
    "--refresh/--no-refresh", default=True, help="Have the cloud give a fresh token first."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Of a ServiceAccount, to be used instead; - for standard input.",
)
@binary_options
def kubeconfig(
    name: str,
    target: str | None,
    token_file: str | None,
    binary: str | None,
    timeout_s: int | None,
    *,
    refresh: bool,
) -> None:
    """Print the kubeconfig of a cluster that was made from here; it holds a credential.

    EKS gives a token for 15 minutes, GKE for an hour. `gpuplane clusters access` makes an account
    whose token lasts, and `gpuplane clusters register NAME --provisioned` registers by it at once.
    """
    token = None if token_file is None else _token_of(token_file)
    refresh = refresh and token is None
    text = kubeconfig_of_made(name, binary, timeout_s, token=token, refresh=refresh)
    hand_out(text, target)


def kubeconfig_of_made(
    name: str,
    binary: str | None,
    timeout_s: int | None,
    *,
    token: str | None = None,
    refresh: bool = True,
) -> str:
    """Return the kubeconfig of a cluster that was made from this home.

    Args:
        name: Its own.
        binary: That made it, as an option names it.
        timeout_s: For what the binary does.
        token: To stand in the place of the administrator's credential.
        refresh: Have the cloud give a fresh credential first.

    Raises:
        CliError: If no such cluster was made from here, or its cloud gives no credential.
    """
    from gpuplane.core.provisioning.kubeconfigs import NoCredential, kubeconfig_of, with_token

    _checked_name(name)
    with _provisioner(binary, timeout_s) as provisioner:
        if refresh:
            provisioner.refresh(name, _files(_spec_of(provisioner.document(name))))
        try:
            outputs = provisioner.outputs(name)
            return kubeconfig_of(name, outputs if token is None else with_token(outputs, token))
        except NoCredential as error:
            raise CliError(
                str(error),
                fix="Take a token by the cloud's own command line and give it as --token-file.",
                code=Exit.REFUSED,
            ) from error


def hand_out(text: str, target: str | None) -> None:
    """Write what holds a credential to a new file of 0600, or to standard output."""
    if target is None:
        click.echo(text, nl=False)
        return
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise unwritable(target, error, field="--to") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


@click.command("join-script")
@FILE
@click.option(
    "--role",
    type=click.Choice(["first-server", "server", "agent"]),
    required=True,
    help="What the machine is to be.",
)
def print_join_script(path: str | None, role: str) -> None:
    """Print the script that makes a machine part of a k3s or kubeadm cluster.

    It is run as root on the machine, with GPUPLANE_JOIN_TOKEN_FILE naming a file there that holds
    the token; the script itself holds no secret.
    """
    from gpuplane.core.provisioning.joining import NoScript, Role, join_script

    spec = _read_spec(path)
    try:
        click.echo(join_script(spec, Role(role)), nl=False)
    except NoScript as error:
        raise CliError(str(error), code=Exit.REFUSED) from error


COMMANDS = (plan, provision, deprovision, provisioned, kubeconfig, print_join_script)


@contextmanager
def _provisioner(binary: str | None, timeout_s: int | None) -> Iterator["Provisioner"]:
    """Build what makes clusters; its refusals become those of the command line."""
    from gpuplane.kit.errors import ProductError
    from gpuplane.kit.sealing import SealingKeys
    from gpuplane.provisioning.clusters import Limits, Provisioner
    from gpuplane.provisioning.errors import ProvisioningError, Reason

    home = home_of(os.environ)
    codes = {
        Reason.BUSY: Exit.REFUSED,
        Reason.NO_BINARY: Exit.REFUSED,
        Reason.NO_PLAN: Exit.NOT_FOUND,
        Reason.NO_STATE: Exit.NOT_FOUND,
        Reason.INTERRUPTED: Exit.INTERRUPTED,
    }
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits = Limits() if timeout_s is None else Limits(apply_s=float(timeout_s))
        yield Provisioner(
            home,
            SealingKeys(home / "keys"),
            environment=os.environ,
            binary=binary,
            limits=limits,
            tell=note,
        )
    except ProvisioningError as error:
        code = codes.get(error.reason, Exit.FAILED)
        raise CliError(error.message, fix=error.fix, code=code) from error
    except ProductError as error:
        raise CliError(error.detail, fix=error.fix, code=Exit.FAILED) from error
    except OSError as error:
        raise CliError(f"{error.filename or home}: {error.strerror}.", code=Exit.FAILED) from error


def _token_of(path: str) -> str:
    """Return the token in a file.

    Raises:
        CliError: If there is none.
    """
    text = read_named(path, field="--token-file")
    if len(text.split()) != 1:
        raise CliError(
            "It does not hold one token.", field="--token-file", code=Exit.USAGE,
            fix="Give it what `kubectl create token` prints.",
        )  # fmt: skip
    return text.strip()


def _read_spec(path: str | None) -> "ClusterSpec":
    """Return the specification of a file.

    Raises:
        CliError: If it cannot be read or cannot be meant.
    """
    from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

    if path is None:
        raise click.UsageError("Give the specification: -f FILE.")
    text = read_named(path)
    try:
        if len(text) > MAX_BYTES:
            raise UnreadableYaml(f"It is longer than {MAX_BYTES} characters.")
        documents = load_documents(text)
    except UnreadableYaml as error:
        raise CliError(f"{path} cannot be read: {error}", code=Exit.USAGE) from error
    if len(documents) != 1:
        raise CliError(
            f"{path} holds {len(documents)} documents.",
            fix="Give one ClusterSpecification.",
            code=Exit.USAGE,
        )
    return _spec_of(documents[0])


def _spec_of(document: object) -> "ClusterSpec":
    from gpuplane.core.provisioning.problems import BadSpec
    from gpuplane.core.provisioning.reading import parse_cluster_spec
    from gpuplane.kube.instances import find_accelerators

    def gpus_of(instance_type: str) -> tuple[str, int] | None:
        found = find_accelerators(instance_type)
        return None if found is None else (found.model, found.count)

    try:
        return parse_cluster_spec(document, gpus_of)
    except BadSpec as error:
        raise SpecRefused(error.problems) from error


def _cloud_spec(path: str | None) -> "ClusterSpec":
    spec = _read_spec(path)
    if not spec.platform.is_cloud:
        raise CliError(
            f"{spec.platform} clusters are made of machines that are there.",
            field="spec.platform",
            fix="`gpuplane clusters join-script -f FILE --role first-server` joins them.",
            code=Exit.REFUSED,
        )
    return spec


def _files(spec: "ClusterSpec") -> Mapping[str, bytes]:
    from gpuplane.core.provisioning.files import plan_files

    return plan_files(spec)


def _document(spec: "ClusterSpec") -> dict[str, Any]:
    from gpuplane.core.provisioning.specs import document_of

    return document_of(spec)


def _show(saved: "SavedPlan") -> None:
    """Write what a plan would do; data for people on standard output."""
    for each in saved.summary.changes:
        sign, style = SIGNS.get(each.action.value, ("?", ""))
        click.echo(f"{paint(sign, style)} {each.address}")
    counts = saved.summary
    click.echo(f"{counts.added} to add, {counts.changed} to change, {counts.destroyed} to destroy")


def _data(name: str, saved: "SavedPlan") -> dict[str, Any]:
    counts = saved.summary
    return {
        "cluster": name,
        "plan": saved.id,
        "purpose": saved.purpose.value,
        "add": counts.added,
        "change": counts.changed,
        "destroy": counts.destroyed,
        "resources": [
            {"address": each.address, "action": each.action.value} for each in counts.changes
        ],
    }


def _checked_name(name: str) -> str:
    """Return a name that is the name of a folder and nothing else."""
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise CliError(f"{name!r} is no name of a cluster.", field="NAME", code=Exit.USAGE)
    return name
