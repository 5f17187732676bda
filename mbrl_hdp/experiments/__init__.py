"""Configuration, Algorithm 1, checkpoints, the paper's tables."""
