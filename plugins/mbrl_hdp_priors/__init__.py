"""Built-in priors over the context chain."""
