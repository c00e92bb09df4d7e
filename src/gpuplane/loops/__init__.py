"""One file or package a loop, each `run_once`: load, decide, apply."""
