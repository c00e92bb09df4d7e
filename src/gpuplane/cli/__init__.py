"""The command line: a thin client of the HTTP API; it knows no domain, database or backend."""
