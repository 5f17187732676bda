"""Probability: exact messages over contexts, Markov-chain algebra, stick-breaking."""
