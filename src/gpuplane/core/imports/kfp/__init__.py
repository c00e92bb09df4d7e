"""Kubeflow Pipelines: the compiled intermediate representation, pipeline spec 2.x."""
