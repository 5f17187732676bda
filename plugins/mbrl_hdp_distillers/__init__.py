"""Built-in distillation rules."""
