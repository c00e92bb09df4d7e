"""The account by which a control plane works in a cluster: made by an administrator's kubeconfig.

Asks the cluster itself, no server of ours. What is handed out holds the account's token, and
nothing of the administrator's.
"""

import asyncio
from typing import TYPE_CHECKING

import click

from gpuplane.cli.commands.provisioning import TO, binary_options, hand_out, kubeconfig_of_made
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.files import read_named

if TYPE_CHECKING:
    from gpuplane.kube.connections import Connection

MAX_BYTES = 512 << 10
FOR_ADDONS = click.option(
    "--for-addons",
    is_flag=True,
    help="Let the account bring add-ons in, which takes an administrator's rights.",
)

FOR_MULTIKUEUE = click.option(
    "--for-multikueue",
    is_flag=True,
    help="Make the account of MultiKueue's managers too: the cluster joins them as a worker.",
)


def read_kubeconfig_text(path: str) -> str:
    """Return the text of a kubeconfig, `-` for standard input.

    Raises:
        CliError: If it cannot be read, is empty or too long.
    """
    text = read_named(path)
    if not text.strip():
        where = "standard input" if path == "-" else path
        raise CliError(
            f"{where} is empty: it holds no kubeconfig.",
            fix="Name the file, or make one: kubectl config view --raw --minify --flatten",
            code=Exit.USAGE,
        )
    if len(text) > MAX_BYTES:
        raise CliError(f"{path} is longer than {MAX_BYTES} bytes.", code=Exit.USAGE)
    return text


@click.command("access")
@click.argument("name", required=False)
@click.option(
    "--kubeconfig", "path", metavar="FILE", help="Of an administrator; - for standard input."
)
@click.option("--context", help="Of the kubeconfig; its current one unless given.")
@FOR_ADDONS
@FOR_MULTIKUEUE
@TO
@binary_options
def access(
    name: str | None,
    path: str | None,
    context: str | None,
    target: str | None,
    binary: str | None,
    timeout_s: int | None,
    *,
    for_addons: bool,
    for_multikueue: bool,
) -> None:
    """Make the account by which a cluster is registered, and print its kubeconfig.

    NAME is a cluster that was made from this home; any other is told by --kubeconfig. The account
    may do what registration asks for and no more; again, the same is printed.
    """
    if (name is None) is (path is None):
        raise click.UsageError("Give either the NAME of a cluster made from here or --kubeconfig.")
    if name is not None:
        text = kubeconfig_of_made(name, binary, timeout_s)
    else:
        text = read_kubeconfig_text(str(path))
    made = make_access(
        text,
        context,
        name or "gpuplane",
        for_addons=for_addons,
        for_multikueue=for_multikueue,
    )
    hand_out(made, target)


def make_access(
    text: str,
    context: str | None,
    name: str,
    *,
    for_addons: bool,
    for_multikueue: bool = False,
) -> str:
    """Return the kubeconfig of the account, made by that of an administrator.

    Args:
        text: The administrator's.
        context: Of it; its current one where None.
        name: What the context of the account is called.
        for_addons: Whether the account may bring add-ons in.
        for_multikueue: Whether managers of MultiKueue get an account there as well.

    Raises:
        CliError: If the kubeconfig is not taken, or the cluster does not do it.
    """
    from gpuplane.kube.errors import Forbidden, KubeError, Unauthorized
    from gpuplane.kube.kubeconfigs import write_kubeconfig
    from gpuplane.provisioning.access import (
        ensure_access,
        ensure_access_for_addons,
        ensure_multikueue_account,
    )
    from gpuplane.provisioning.errors import ProvisioningError

    admin = _connection(text, context)
    make = ensure_access_for_addons if for_addons else ensure_access
    try:
        made = asyncio.run(make(admin))
        if for_multikueue:
            asyncio.run(ensure_multikueue_account(admin))
    except Unauthorized as error:
        raise CliError(
            f"{admin.server} does not know these credentials, or no longer.",
            fix="Take fresh ones of an administrator.",
            code=Exit.REFUSED,
        ) from error
    except Forbidden as error:
        raise CliError(
            f"These credentials may not make the account: {error.message}",
            fix="Take those of an administrator: the account is granted nothing beyond them.",
            code=Exit.REFUSED,
        ) from error
    except KubeError as error:
        raise CliError(f"{admin.server}: {error.message}") from error
    except ProvisioningError as error:
        raise CliError(error.message, fix=error.fix) from error
    return write_kubeconfig(made, name=name) + "\n"


def _connection(text: str, context: str | None) -> "Connection":
    from gpuplane.kube.connections import BadKubeconfig, read_kubeconfig

    try:
        return read_kubeconfig(text, context)
    except BadKubeconfig as error:
        raise CliError(error.reason, field=error.field, fix=error.fix, code=Exit.USAGE) from error


COMMANDS = (access,)
