"""Ratios against peers, measured in one run on one thread. `python -m benchmarks` runs all of them."""
