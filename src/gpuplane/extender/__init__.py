"""The kube-scheduler extender: the product's own decisions about devices, asked over HTTP.

Owns what it keeps of a cluster's nodes and pods and how the extender protocol is answered from it.
What fits and what is best is decided by `core`, as everywhere else. Never opens a database.
"""
