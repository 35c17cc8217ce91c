"""What a run needs of its teacher or demonstrations before it starts."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path

from shmppo.config.checks import require
from shmppo.config.train_config import ONLY_FOR_LEARNING, TrainConfig
from shmppo.config.trust import Trusted
from shmppo.envs.spec import EnvSpec
from shmppo.extensions.teaching.demonstrations import load_demonstrations
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.extensions.teaching.sampling import Teacher
from shmppo.models.native import resolve_kernel
from shmppo.parallel.process_group import ProcessGroup
from shmppo.policies.policy import TrainedPolicy, check_policy_trust, input_names, trained_from
from shmppo.runs.start import StartExtension, load_on_all_ranks
from shmppo.storage.checkpoint import NAME
from shmppo.storage.checkpoint_file import write_checkpoint
from shmppo.storage.run_directory import CONFIG
from shmppo.utils.files import replaced_file, write_json

DIRECTORY = "teacher"
"""The copy of the teacher in the run directory, so that resuming and verifying do not need what --teacher names."""


class TaughtStart(StartExtension):
    """Loads the teacher, and checks that it fits the run, as the demonstrations must, too."""

    def __init__(self, config: TrainConfig, process_group: ProcessGroup, trust: Trusted, resumed: Path | None) -> None:
        """Load the checkpoint of the teacher.

        Raises:
            ConfigError: on all ranks, if a rank finds no checkpoint or other weights than another rank, or if the
                teacher's configuration names code that is not trusted.
        """
        self._options = TeachingOptions.of(config)
        if self._options.teacher is not None:
            path = Path(self._options.teacher) if resumed is None else resumed / DIRECTORY
            self._state = load_on_all_ranks(path, "--teacher", process_group)
            check_policy_trust(self._state, path, trust)

    def complete(self, config: TrainConfig, task: EnvSpec) -> EnvSpec:
        """Return the task with the teacher.

        Raises:
            ConfigError: if the demonstrations do not fit, if the teacher has other actions, or if the run lacks an
                observation that the teacher needs.
        """
        if self._options.demonstrations is not None:
            load_demonstrations(config, task)  # only to check them
        if self._options.teacher is None:
            return task
        trained, where = trained_from(self._state), f"--teacher {self._options.teacher}"
        # Pickled distributions are equal if their types, sizes, and bounds are.
        actions = {pickle.dumps((one.distribution, one.observation.has_mask)) for one in (trained.task, task)}
        require(
            len(actions) == 1,
            f"{where} has other actions than this run; choose one with the same action space, --action-masks, "
            "--distribution, --squash-actions, --std, --log-std-init, and --log-std-min",
        )
        unseen = sorted({*config.hidden_indices} - {*trained.config.hidden_indices})
        require(
            not unseen,
            f"--hide-obs hides {unseen} from {where}, which needs them; use --actor-obs with SplitObservation",
        )
        sources = {i: _source(i, trained, config, task, where) for i in trained.model.needed_leaves}
        # The --kernel of the run is recorded, so a resumed run computes the teacher in the same way.
        own = dataclasses.replace(trained.config, kernel="torch" if config.kernel == "torch" else "auto")
        own = dataclasses.replace(own, kernel=resolve_kernel(own, trained.model))
        weights = {name: tensor.numpy() for name, tensor in trained.model.state_dict().items()}
        statistics, size = (trained.obs_mean, trained.obs_scale), trained.model.state_size
        teacher = Teacher(own, trained.task.observation, sources, weights, statistics, size)
        return dataclasses.replace(task, added=task.added | {"teacher": teacher})

    def save(self, run_dir: Path) -> None:
        """Write what the teacher's checkpoint contains of its policy. Raises OSError if it cannot be written."""
        if self._options.teacher is None:
            return
        state, own = self._state, run_dir / DIRECTORY
        learner = {name: state["learner"][name] for name in ("model", "obs_moments")}
        own.mkdir(exist_ok=True)
        write_json(own / CONFIG, {"config": json.loads(state["config"]) | ONLY_FOR_LEARNING})
        with replaced_file(own / NAME) as temporary:
            write_checkpoint(temporary, {name: state[name] for name in ("config", "iteration")} | {"learner": learner})


def _source(index: int, trained: TrainedPolicy, config: TrainConfig, task: EnvSpec, where: str) -> int:
    """Return the index of the run's leaf that a leaf of the teacher reads.

    It has the same name, shape, and type. A teacher whose observation has no names reads the only leaf with the same
    shape and type.
    """
    names, name = input_names(config, task.observation), trained.input_names[index]
    leaf = dataclasses.replace(trained.task.observation.leaves[index], keys=())
    same = [i for i, one in enumerate(task.observation.leaves) if dataclasses.replace(one, keys=()) == leaf]
    found = [i for i in same if names[i] == name] or (same if name == "obs" else [])
    missing = f"{where} sees {name} with shape {leaf.env_shape} and type {leaf.dtype}, but the observation of this run"
    require(len(found) == 1, f"{missing} has no such part, or several; use an environment or a wrapper with one")
    return found[0]


START = TaughtStart
