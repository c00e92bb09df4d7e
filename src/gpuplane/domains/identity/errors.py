"""What can be wrong with a request about tenants, projects, users, tokens and memberships."""

from gpuplane.kit.errors import Conflict, Forbidden, NotFound, Unprocessable


class TenantNotFound(NotFound):
    """No tenant of that id, or not the caller's to see."""

    code = "tenant_not_found"


class ProjectNotFound(NotFound):
    """No project of that id, or not the caller's to see."""

    code = "project_not_found"


class UserNotFound(NotFound):
    """No user of that id, or not the caller's to see."""

    code = "user_not_found"


class TokenNotFound(NotFound):
    """No token of that id, or not the caller's to see."""

    code = "token_not_found"


class MembershipNotFound(NotFound):
    """The user holds no role in that place."""

    code = "membership_not_found"


class NameTaken(Conflict):
    """Another thing of the same kind has the name."""

    code = "name_taken"


class StillUsed(Conflict):
    """Something still lies in what should be deleted."""

    code = "still_used"


class LastAdmin(Conflict):
    """Without this role nobody could administer the platform any more."""

    code = "last_admin"


class StaleVersion(Conflict):
    """The thing has changed since it was read."""

    code = "stale_version"


class WiderThanOwn(Forbidden):
    """Nobody hands out more than they hold."""

    code = "wider_than_own"


class WrongProject(Unprocessable):
    """The project does not lie in the tenant."""

    code = "wrong_project"
