"""One control plane for every GPU an organisation owns or rents."""

__version__ = "0.1.0"
