"""Built-in structures of the per-context transition model."""
