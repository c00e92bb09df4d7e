"""Lets `python -m gpuplane` be the command."""

from gpuplane.entry.main import main

main()
