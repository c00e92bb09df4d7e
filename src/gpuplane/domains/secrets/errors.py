"""What can be wrong with a request about secrets."""

from gpuplane.kit.errors import Conflict, NotFound


class SecretNotFound(NotFound):
    """No secret of that name in the project, or not the caller's to see."""

    code = "secret_not_found"


class SecretExists(Conflict):
    """The project has a secret of that name."""

    code = "secret_exists"


class StaleSecret(Conflict):
    """The secret was rotated by somebody else meanwhile."""

    code = "stale_version"
