"""Export a policy as a small directory, which is enough to use it, or to train it again and compare the weights.

Like a run directory, it has config.json, summary.json, metrics.csv, and checkpoint.pt. The checkpoint has only the
weights and normalizers, and metrics.csv only the hash of the weights after each iteration.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig, stored_config
from shmppo.loggers.metrics import WEIGHTS_HASH
from shmppo.models.actor_critic import weights_sha256
from shmppo.storage.checkpoint import NAME, load_selected_checkpoint
from shmppo.storage.checkpoint_file import write_checkpoint
from shmppo.storage.run_directory import CONFIG, METRICS, SUMMARY
from shmppo.tools.verify import read_run
from shmppo.utils.files import config_error_if_unwritable, read_object, replaced_file, user_path, write_json

KEPT = (
    "fingerprint",
    "spaces",
    "generators",
    "inexact_reasons",
    "initial_weights",
    "branched_from",
    "iteration",
    "env_steps",
    "reset_options",
)
"""What the checkpoint keeps besides the configuration, the weights, and the normalizers."""


def export_policy(run_dir: str | Path, *, checkpoint: str | int | Path = "last", out: str | Path | None = None) -> Path:
    """Write the policy of a run to a directory. No code of the run is imported.

    Args:
        run_dir: directory of the run.
        checkpoint: "last", "best", an iteration, or the path of a checkpoint.
        out: directory to write, which must not exist. None: `policy` in the run directory.

    Returns:
        The directory.

    Raises:
        ConfigError: if there is no such checkpoint, if a file of the run is missing or damaged, or if the directory
            exists or cannot be written.
    """
    run_dir = user_path(run_dir, "RUN_DIR")
    rows = read_run(run_dir).rows
    target = user_path(out or run_dir / "policy", "--out")
    state = load_selected_checkpoint(run_dir, checkpoint)
    config = stored_config(json.loads(state["config"])).to_json() | {"run_dir": None, "stop_at_iteration": None}
    copies = [name for name in fields_with(TrainConfig, copied=True) if config[name] is not None]
    config |= {name: name for name in copies}
    learner = {name: state["learner"][name] for name in ("model", "obs_moments", "return_moments")}
    content = {name: state[name] for name in KEPT if name in state} | {"config": json.dumps(config), "learner": learner}
    described = read_object(run_dir / CONFIG, "restore it") | {"config": config}
    summary = read_object(run_dir / SUMMARY, "train the run to its end")
    kept = ("same_bits_on", "environment_check", "initial_weights", "wall_seconds")
    reasons = [*summary["inexact_reasons"], *state["inexact_reasons"]]  # a resume may have added some
    summary = {name: summary[name] for name in kept} | {
        "exact": False if reasons else summary["exact"],
        "inexact_reasons": list(dict.fromkeys(reasons)),
        "weights_sha256": weights_sha256(learner["model"].values()),
        "iterations": state["iteration"],
        "env_steps": state["env_steps"],
    }
    with config_error_if_unwritable(f"--out {target}", "name another directory"):
        target.mkdir(parents=True)
        with replaced_file(target / NAME) as temporary:
            write_checkpoint(temporary, content)
        for name in copies:
            shutil.copytree(run_dir / name, target / name)
        write_json(target / CONFIG, described)
        write_json(target / SUMMARY, summary)
        with open(target / METRICS, "w", newline="") as file:
            hashes = csv.DictWriter(file, ["iteration", WEIGHTS_HASH], extrasaction="ignore")
            hashes.writeheader()
            hashes.writerows(row for iteration, row in rows.items() if iteration <= state["iteration"])
    return target
