"""The belief over contexts: predict, correct, and pack it beside the observation."""
