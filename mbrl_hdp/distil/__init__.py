"""Separate meaningful contexts from spurious ones and reduce the chain by Theorem 1."""
