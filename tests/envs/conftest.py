"""What the tests of the tasks share."""

import numpy as np
import pytest


@pytest.fixture
def rollout():
    """A function that plays one episode: observations (first one included), rewards, acting contexts, last info."""

    def play(env, acts, seed=0):
        obs, info = env.reset(seed=seed)
        all_obs, rewards, contexts = [obs], [], []
        for act in acts:
            obs, reward, terminated, truncated, info = env.step(act)
            assert not terminated
            all_obs.append(obs)
            rewards.append(reward)
            contexts.append(info["context"])
        assert truncated == (len(acts) >= env.unwrapped.horizon)
        env.close()
        return np.array(all_obs), np.array(rewards), np.array(contexts), info

    return play
