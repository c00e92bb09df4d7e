"""The API to ask."""

from tests.http_app import any_server, sealing_keys, server

__all__ = ["any_server", "sealing_keys", "server"]
