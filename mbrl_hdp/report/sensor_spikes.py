"""A remark on readings that jump away and come back at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mbrl_hdp.data.spikes import is_spike
from mbrl_hdp.data.trajectories import Trajectories

_FEWEST = 5


def sensor_spikes(data: Trajectories, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if a few readings of some columns jump away and come back."""
    counts = is_spike(data).sum((0, 1))
    found = [
        f"{name} ({count} readings)" for name, count in zip(names, counts.tolist(), strict=True) if count >= _FEWEST
    ]
    if found:
        yield (
            f"readings jump away and come back at once in {', '.join(found)}: if these are spikes of the sensor, fit "
            "again with spikes=drop (in Python mbrl_hdp.data.spikes.without_spikes); spikes may hide contexts"
        )
