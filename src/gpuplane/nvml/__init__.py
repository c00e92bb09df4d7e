"""The GPUs of this machine through NVML: what there is, how it is wired, how it does."""
