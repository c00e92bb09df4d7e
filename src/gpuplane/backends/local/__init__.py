"""This machine as a cluster: real processes under one supervisor per attempt."""
