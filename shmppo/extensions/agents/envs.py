"""An environment with several agents (PettingZoo): each agent that it may have is a column of the rollout.

An agent is active if it acts in the next step. It is idle before it joins and after it has ended, while the environment
returns no observation of it, while its action mask allows nothing, and while another agent has the turn.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo.config.checks import require, shown
from shmppo.config.train_config import TrainConfig
from shmppo.envs.wrappers import MASK_KEY, allowed_action, mask_starts
from shmppo.extensions.agents.options import STATE_KEY, AgentOptions


class AgentsEnv(gymnasium.Env):
    """One environment of PettingZoo, whose agents act together: `begin` and `advance`.

    The checks before a run use it as an environment of Gymnasium: `reset` and `step`. The first active agent chooses an
    action, and the others take the same one or, with masks, the first allowed one.

    Attributes:
        env: PettingZoo's parallel environment.
        names: the A agents that it may have, in the order of their columns.
        observation_space, action_space: of one agent. With flags that add to the observation, it is a Dict with the
            keys "obs", "agent_id", "state", and "action_mask".
        seen: the last observation of each agent in this episode, None before the first one.
        infos: the last `info` of each agent.
        active: bool [A], which agents act in the next step.
        updated: bool [A], which agents the last call has returned an observation of.
    """

    def __init__(self, env: Any, config: TrainConfig) -> None:
        """Wrap what `--env` has made.

        Raises:
            ConfigError: if the agents have different spaces, or if --action-masks is given without masks or missing.
        """
        where, options = f"--env {config.env_id}", AgentOptions.of(config)
        require(
            not isinstance(env, gymnasium.Env) and config.env_backend in ("auto", "gymnasium"),
            f"{where} has several agents (possible_agents); give an environment of PettingZoo, without --env-backend",
        )
        self._turns: Any = None  # a turn-based environment, whose agent_selection has the turn
        if hasattr(env, "agent_iter"):
            from pettingzoo.utils import conversions  # the environment has imported it already

            together = env.metadata.get("is_parallelizable")
            self._turns = None if together else env
            env = (conversions.aec_to_parallel if together else conversions.turn_based_aec_to_parallel)(env)
        self.env, self.names = env, list(env.possible_agents)
        named = all(isinstance(name, str) for name in self.names)
        require(named, f"{where}: possible_agents is {shown(self.names)}; each name must be a string")
        own = env.observation_space(self.names[0])
        self.action_space: spaces.Space[Any] = env.action_space(self.names[0])
        require(
            all(env.observation_space(name) == own for name in self.names)
            and all(env.action_space(name) == self.action_space for name in self.names),
            f"{where}: the agents have different spaces, but one policy acts for all agents; make them equal, for "
            "example with the padding wrappers of SuperSuit",
        )
        self._masked = isinstance(own, spaces.Dict) and set(own.spaces) == {"observation", MASK_KEY}
        require(
            self._masked == config.action_masks,
            f"{where}: the agents' observations {'have' if self._masked else 'do not have'} the form "
            f"{{'observation': …, 'action_mask': …}}; {'add' if self._masked else 'correct them, or leave out'} "
            "--action-masks",
        )
        parts = {"obs": own["observation"] if self._masked else own}
        self._ids = np.eye(len(self.names), dtype=np.int8)
        if options.agent_id:
            parts["agent_id"] = spaces.MultiBinary(len(self.names))
        if options.critic_state:
            require(hasattr(env, "state_space"), f"{where} has no state_space; add it, or leave out --critic-state")
            parts[STATE_KEY] = env.state_space
        if self._masked:
            parts[MASK_KEY] = spaces.MultiBinary(spaces.flatdim(self.action_space))
            self._starts = mask_starts(self.action_space)
        self._keys = list(parts)
        self.observation_space = parts["obs"] if len(parts) == 1 else spaces.Dict(list(parts.items()))  # in this order
        self.metadata, self.render_mode = getattr(env, "metadata", {}), getattr(env, "render_mode", None)
        self._actor = 0

    @property
    def done(self) -> bool:
        """Whether the episode of all agents has ended."""
        return not self.env.agents

    def begin(self, **arguments: Any) -> None:
        """Begin an episode. arguments: of the environment's `reset`."""
        self.seen: list[Any] = [None] * len(self.names)
        self.infos: list[Any] = [{}] * len(self.names)
        self.active, self.updated = np.zeros((2, len(self.names)), bool)
        observations, infos = self.env.reset(**arguments)
        self._update(observations, infos)
        if self.done:
            raise ValueError("the list agents is empty after reset; it must contain the agents that begin the episode")

    def advance(self, actions: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step the environment with the actions of the active agents, until an agent is active or the episode ends.

        Args:
            actions: one per agent; those of idle agents are ignored.

        Returns:
            (rewards float64 [A], terminated bool [A], truncated bool [A]). Rewards of idle agents count, too.
        """
        rewards = np.zeros(len(self.names))
        terminated, truncated = np.zeros((2, len(self.names)), bool)
        chosen = {name: actions[k] for k, name in enumerate(self.names) if self.active[k]}
        self.updated[:] = False
        while True:
            if not chosen and self._turns is not None:
                raise ValueError(f"{self._turns.agent_selection} has the turn, but its action mask allows nothing")
            living = set(self.env.agents)
            observations, gained, terminations, truncations, infos = self.env.step(chosen)
            if missing := living - (gained.keys() & terminations.keys() & truncations.keys()):
                raise ValueError(f"step must return a reward, a termination, and a truncation for {min(missing)}")
            for k, name in enumerate(self.names):
                rewards[k] += float(gained.get(name, 0.0))
                if name in living:
                    terminated[k] |= bool(terminations[name])
                    truncated[k] |= bool(truncations[name]) or name not in self.env.agents
            ended = {name for name in living if terminations[name] or truncations[name]}
            if living and living == ended == set(self.env.agents):
                raise ValueError("all agents have ended, but are still in the list agents; step must remove them")
            self._update(observations, infos, living)
            if self.active.any() or self.done:
                return rewards, terminated, truncated & ~terminated
            chosen = {}

    def _update(self, observations: dict[str, Any], infos: dict[str, Any], living: Set[str] = frozenset()) -> None:
        """Store what the environment has returned, and find out which agents are active.

        living: the agents before the step. The last step of an agent may have an info without an observation.
        """
        if unknown := {*observations, *self.env.agents}.difference(self.names):
            raise ValueError(f"{min(unknown, key=str)} is not in possible_agents: {', '.join(self.names)}")
        state = self.env.state() if STATE_KEY in self._keys else None
        for k, name in enumerate(self.names):
            has_turn = self._turns is None or name == self._turns.agent_selection
            self.active[k] = name in observations and name in self.env.agents and has_turn
            if name in observations or name in living & infos.keys():
                self.infos[k] = infos.get(name, {})
            if name in observations:
                self.updated[k] = True
                self.seen[k] = self._parts(k, observations[name], state)
                if self._masked:
                    self.active[k] &= bool(np.logical_or.reduceat(self.seen[k][MASK_KEY], self._starts).all())

    def _parts(self, k: int, observation: Any, state: Any) -> Any:
        """Return the observation of agent k with what the flags add."""
        parts = {"obs": observation, "agent_id": self._ids[k], STATE_KEY: state}
        if self._masked:
            parts |= {"obs": observation["observation"], MASK_KEY: np.asarray(observation[MASK_KEY])}
        return parts["obs"] if len(self._keys) == 1 else {key: parts[key] for key in self._keys}

    @property
    def unwrapped(self) -> Any:
        """PettingZoo's environment without wrappers."""
        return self.env.unwrapped

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        self.begin(**arguments)
        return self._look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`. The reward is the sum over all agents."""
        actions = [action] * len(self.names)
        for k, seen in enumerate(self.seen):
            if k != self._actor and self._masked and self.active[k]:
                actions[k] = allowed_action(self.action_space, seen[MASK_KEY], np.argmax)
        rewards, _, truncated = self.advance(actions)
        cut = bool(truncated.any())
        observation, info = self._look()
        return observation, float(rewards.sum()), self.done and not cut, self.done and cut, info

    def _look(self) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info of the first active agent, or of the same one after the last step."""
        if self.active.any():
            self._actor = int(self.active.argmax())
        return self.seen[self._actor], self.infos[self._actor]

    def render(self) -> Any:
        """Return PettingZoo's rendering."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
