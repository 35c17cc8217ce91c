"""Opponents in evaluations: they act for the agents that the policy does not play."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np

from shmppo.config.checks import require, shown
from shmppo.config.plugins import load_object
from shmppo.envs.inspection import refuse_other_spaces
from shmppo.envs.vector_env import VectorEnv
from shmppo.envs.wrappers import MASK_KEY, allowed_action, fits, is_allowed
from shmppo.extensions.agents.options import RANDOM
from shmppo.extensions.agents.vector_env import AgentsVectorEnv
from shmppo.policies.policy import TrainedPolicy, load_trained
from shmppo.sampling.actor import Actor
from shmppo.sampling.evaluation import Others
from shmppo.utils.rng import keyed_generator
from shmppo.utils.user_code import as_config_error

ChooseAction = Callable[[Any, gymnasium.Space[Any], np.random.Generator], Any]
"""Returns an action for (the observation of an agent, its action space, a generator of its own)."""


def opponent_generator(run_seed: int, index: int, iteration: int) -> np.random.Generator:
    """Return the generator of opponents: of the weights that get into the slots, or of a random player's actions."""
    return keyed_generator(run_seed, 5, index=index, iteration=iteration)


class Opponent(Others):
    """Acts for the agents that the policy does not play."""

    def begin(self, envs: VectorEnv, seed: int) -> None:
        """Begin an episode in every environment, with a generator for each agent."""
        self._envs = cast(AgentsVectorEnv, envs)
        self._generators = [opponent_generator(seed, handle.index, 0) for handle in envs.handles]

    def act(self, actions: list[Any]) -> None:
        """Choose the actions of the agents that an opponent plays."""
        active = np.flatnonzero(self._envs.opponent_active).tolist()
        columns = [i for i in active if actions[i] is not None]
        for i, action in zip(columns, self.choose(columns), strict=True):
            actions[i] = action

    def choose(self, columns: Sequence[int]) -> list[Any]:
        """Return an action for each of these columns, in the environment's format."""
        raise NotImplementedError


class FunctionOpponent(Opponent):
    """An opponent without memory: a function chooses its actions."""

    def __init__(self, name: str, flag: str = "--opponent") -> None:
        """Load the function.

        Args:
            name: "random", or `module:function`, which is called as `ChooseAction` says.
            flag: that gave the name, for the error message.

        Raises:
            ConfigError: if there is no such function.
        """
        self._name = f"{flag} {name}"
        self._choose: ChooseAction = play_at_random if name == RANDOM else load_object(name, flag)

    def choose(self, columns: Sequence[int]) -> list[Any]:
        """Return the actions that the function chooses.

        Raises:
            ConfigError: if it raises, or if one of them is None, has another shape, is a code outside the action space,
                or is forbidden by the mask.
        """
        space, seen = self._envs.action_space, [self._envs.seen(i) for i in columns]
        with as_config_error(self._name, "; correct the function"):
            actions = [self._choose(obs, space, self._generators[i]) for obs, i in zip(seen, columns, strict=True)]
        for obs, action in zip(seen, actions, strict=True):
            what = f"{self._name} returned {shown(action)}"
            require(fits(action, space), f"{what}; it must return an action of {space}")
            allowed = not self._envs.observation.has_mask or is_allowed(space, obs[MASK_KEY], action)
            require(allowed, f"{what}, which the action mask forbids; correct the function")
        return actions


def play_at_random(observation: Any, space: gymnasium.Space[Any], generator: np.random.Generator) -> Any:
    """Return any action that the mask allows."""
    if isinstance(observation, dict) and MASK_KEY in observation:
        return allowed_action(space, observation[MASK_KEY], lambda mask: generator.choice(np.flatnonzero(mask)))
    space.seed(int(generator.integers(2**31)))
    return space.sample()


class PolicyOpponent(Opponent):
    """A trained policy as an opponent."""

    def __init__(self, trained: TrainedPolicy, *, stochastic: bool) -> None:
        """Create the opponent. stochastic: whether it samples actions, or takes the most likely ones."""
        self._trained, self._stochastic = trained, stochastic

    def begin(self, envs: VectorEnv, seed: int) -> None:
        """Begin an episode in every environment, with recurrent states of zero."""
        super().begin(envs, seed)
        trained, low = self._trained, envs.handles[0].index
        self._playing = np.zeros(len(envs.handles), bool)
        distribution = trained.task.distribution
        self._actor = Actor(trained.config, trained.model, distribution, envs.obs, low=low, active=self._playing)
        self._actor.load(trained.obs_mean, trained.obs_scale)

    def choose(self, columns: Sequence[int]) -> list[Any]:
        """Return its actions."""
        self._playing[:] = False
        self._playing[columns] = True
        distribution = self._trained.task.distribution
        if self._stochastic:
            self._actor.load_noise(np.stack([distribution.noise(one, 1) for one in self._generators], axis=1))
        return distribution.to_env(self._actor.act(0 if self._stochastic else None)[columns])

    def end(self, column: int) -> None:
        """Restart with a recurrent state of zero."""
        self._actor.states[column] = 0.0


def load_opponent(name: str, trained: TrainedPolicy, arguments: Mapping[str, Any]) -> Opponent:
    """Return the opponent that `evaluate --opponent` names: "random", `module:function`, or the directory of a run.

    arguments: stochastic, trust, and env_kwargs of `evaluate`.

    Raises:
        ConfigError: if there is no such opponent, or if it sees or does other things than the evaluated policy.
    """
    path = Path(name)
    if name == RANDOM or (":" in name and not path.exists()):
        return FunctionOpponent(name)
    other = load_trained(path, trust=arguments["trust"])
    refuse_other_spaces(trained.task, other.task.stored, f"the opponent {name}")
    one, two = ((run.task.added, {*run.config.hidden_indices}) for run in (trained, other))
    require(one == two, f"the opponent {name} was trained with other agents or --hide-obs; choose another run")
    return PolicyOpponent(other, stochastic=arguments["stochastic"])
