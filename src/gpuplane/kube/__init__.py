"""Kubernetes: connections, a client, informers, Helm; shared by backends, extender and operator."""
