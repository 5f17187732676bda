"""Models outside the notebook: exported for other runtimes, or served to many streams at once."""
