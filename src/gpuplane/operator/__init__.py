"""Serves GPUWorkload and MIGLayout inside a cluster: the leader decides, Kubernetes runs."""
