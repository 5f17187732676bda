"""Models outside the notebook: exported for other runtimes, or served to many streams at once."""

from pathlib import Path


def exported_run_path() -> Path:
    """Return the script that goes along with every exported model; nothing here imports it."""
    return Path(__file__).with_name("exported_run.py")
