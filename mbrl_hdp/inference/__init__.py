"""Learn the contexts from trajectories: priors, transition models, the ELBO, the fit."""
