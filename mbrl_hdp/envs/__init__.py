"""Tasks with hidden contexts, and the wrapper that makes any gymnasium environment one."""
