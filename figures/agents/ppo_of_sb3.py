"""PPO of Stable-Baselines3 on simple_spread, with SuperSuit's vectorization: ppo_of_sb3.py SEED ENVIRONMENT_STEPS

Prints JSON with columns of teams.csv. Needs mpe2, stable-baselines3, and supersuit.
"""

import json
import sys
import time

import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from stable_baselines3 import PPO

ENVIRONMENTS, AGENTS, EPISODES = 16, 3, 100


def main(seed: int, steps: int) -> None:
    torch.set_num_threads(2)
    rows = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    env = supersuit.concat_vec_envs_v1(rows, ENVIRONMENTS, num_cpus=1, base_class="stable_baselines3")
    env.venv.seed = lambda seed=None: [seed]  # SB3 calls it, but SuperSuit lacks it
    options = {"n_steps": 128, "batch_size": 512, "n_epochs": 4, "gamma": 0.95, "learning_rate": 1e-3, "ent_coef": 0.01}
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **options)
    start = time.perf_counter()
    model.learn(total_timesteps=steps * AGENTS)
    seconds, returns, single = time.perf_counter() - start, np.zeros(EPISODES), simple_spread_v3.parallel_env()
    for episode in range(EPISODES):
        observations, _ = single.reset(seed=10_000 + episode)
        while single.agents:
            actions, _ = model.predict(np.stack(list(observations.values())), deterministic=True)
            observations, rewards, *_ = single.step(dict(zip(list(single.agents), actions.tolist(), strict=True)))
            returns[episode] += sum(rewards.values())
    row = {"env_steps": model.num_timesteps // AGENTS, "evaluate_return": round(returns.mean(), 2)}
    row |= {"evaluate_std": round(returns.std(), 2), "episodes": EPISODES, "wall_seconds": round(seconds, 1)}
    print(json.dumps(row))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
