"""Trajectories: collect, check, split, save and load."""
