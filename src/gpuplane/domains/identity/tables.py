"""Tables of tenants, projects, users, tokens, memberships and cluster affinities."""

from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base, Json


class TenantRow(Base):
    """One tenant: the wall between customers."""

    __tablename__ = "identity_tenants"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    display_name: Mapped[str] = mapped_column(default="")
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class ProjectRow(Base):
    """One project of a tenant: what members share."""

    __tablename__ = "identity_projects"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("identity_tenants.id"))
    name: Mapped[str] = mapped_column(String(63))
    display_name: Mapped[str] = mapped_column(default="")
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class UserRow(Base):
    """One person or program; where its calls go when they name no project."""

    __tablename__ = "identity_users"
    __table_args__ = (UniqueConstraint("name"), UniqueConstraint("email"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    email: Mapped[str | None] = mapped_column(String(254))
    display_name: Mapped[str] = mapped_column(default="")
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("identity_tenants.id"), index=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("identity_projects.id"), index=True)
    disabled: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class LoginRow(Base):
    """The subject by which an identity provider knows a user."""

    __tablename__ = "identity_logins"

    issuer: Mapped[str] = mapped_column(String(500), primary_key=True)
    subject: Mapped[str] = mapped_column(String(255), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(
        ForeignKey("identity_users.id", ondelete="CASCADE"), index=True
    )
    created_at: Mapped[int]


class MembershipRow(Base):
    """One role of a user: on the platform (no tenant), a tenant or one project."""

    __tablename__ = "identity_memberships"
    __table_args__ = (
        CheckConstraint("role IN ('admin','operator','member','viewer')", name="role_known"),
        CheckConstraint("project_id IS NULL OR tenant_id IS NOT NULL", name="project_in_tenant"),
        UniqueConstraint("user_id", "place"),
        Index("ix_identity_memberships_tenant", "tenant_id", "project_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("identity_users.id", ondelete="CASCADE"))
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("identity_tenants.id"))
    project_id: Mapped[UUID | None] = mapped_column(ForeignKey("identity_projects.id"))
    place: Mapped[str] = mapped_column(String(80))
    """`platform`, `tenant/<id>` or `project/<id>`: NULLs are never equal, so this is unique."""
    role: Mapped[str] = mapped_column(String(20))
    extra: Mapped[list[str]] = mapped_column(Json)
    created_at: Mapped[int]


class TokenRow(Base):
    """One token: its SHA-256, never itself."""

    __tablename__ = "identity_tokens"
    __table_args__ = (UniqueConstraint("hash"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(
        ForeignKey("identity_users.id", ondelete="CASCADE"), index=True
    )
    name: Mapped[str] = mapped_column(String(63))
    hash: Mapped[str] = mapped_column(String(64))
    hint: Mapped[str] = mapped_column(String(12))
    """The first characters, so that people recognise a token in a list."""
    scopes: Mapped[list[str] | None] = mapped_column(Json)
    created_at: Mapped[int]
    expires_at: Mapped[int | None]
    revoked_at: Mapped[int | None]
    last_used_at: Mapped[int | None]


class AffinityRow(Base):
    """How a project stands to a cluster: required, preferred or excluded."""

    __tablename__ = "identity_affinities"
    __table_args__ = (
        CheckConstraint("kind IN ('required','preferred','excluded')", name="kind_known"),
    )

    project_id: Mapped[UUID] = mapped_column(
        ForeignKey("identity_projects.id", ondelete="CASCADE"), primary_key=True
    )
    cluster_id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
