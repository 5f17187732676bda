"""The best policy of a run, by the returns of its training episodes: what learns can also break down again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.state import prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError


class BestPolicy:
    """Keeps the policy whose latest training episodes had the highest mean return; it costs no further episode.

    Args:
        like: a policy of the same kind; the kept one starts as it.
        num_episodes: episodes that a mean is taken over.

    Attributes:
        policy: the kept policy; None until so many episodes were played.
        mean_return: mean return of its episodes.
    """

    def __init__(self, like: ContextSac, num_episodes: int) -> None:
        self._kept = ContextSac(like.codec, like.action_space, like.config, total_updates=like.total_updates)
        self._returns: deque[float] = deque(maxlen=num_episodes)
        self._contexts: list[int] = []
        self.mean_return = -math.inf

    @property
    def policy(self) -> ContextSac | None:
        """The kept policy."""
        return self._kept if math.isfinite(self.mean_return) else None

    def see(self, played: Trajectories, policy: ContextSac, contexts: list[int]) -> None:
        """Take in episodes that a policy has played; keep it if the latest ones are the best so far.

        Args:
            played: the episodes.
            policy: what played them.
            contexts: slots of the belief that are in use. Where they change, nothing is kept: an earlier policy does
                not fit what it would see now.
        """
        if played.reward is None:
            raise DataError("agent.best_of_episodes needs episodes with rewards")
        if contexts != self._contexts:
            self._contexts, self.mean_return = contexts, -math.inf
            self._returns.clear()
            return
        self._returns.extend(np.where(played.is_step, played.reward, 0.0).sum(1).tolist())
        mean = float(np.mean(self._returns))
        if len(self._returns) == self._returns.maxlen and mean > self.mean_return:
            self.mean_return = mean
            self._kept.load_state_dict(policy.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the kept policy, its mean return, the latest returns and the contexts in use."""
        means = [self.mean_return] if self.policy is not None else []
        words = {"returns": list(self._returns), "mean_return": means, "contexts": self._contexts}
        return words | prefixed("policy", self._kept.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._returns.extend(state["returns"])
        self._contexts = list(state["contexts"])
        self.mean_return = state["mean_return"][0] if state["mean_return"] else -math.inf
        self._kept.load_state_dict(unprefixed(state, "policy"))
