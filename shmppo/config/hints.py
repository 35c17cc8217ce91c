"""Hints for flags that other trainers have: which flag to use here, and how to compute its value.

Names are those of Stable-Baselines3 and its contrib package, CleanRL, Sample Factory, PufferLib, RLlib, rsl_rl,
rl_games, Brax, and OpenAI Baselines. A hyphen stands for a hyphen or an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from shmppo.config.checks import nearest, require

RENAMED = {
    "--activation": "activation-fn activation-function nonlinearity fcnet-activation",
    "--adam-eps": "adam-epsilon eps",
    "--advantage-norm": "norm-adv normalize-advantage normalize-advantages normalize-advantage-per-mini-batch",
    "--checkpoint-every": "checkpoint-interval checkpoint-freq checkpoint-frequency save-interval save-every",
    "--clip": "clip-range clip-coef clip-param cliprange clip-ratio clipping-epsilon clip-eps e-clip",
    "--clip-reward": "reward-clip clip-rewards",
    "--config": "config-file cfg cfg-file",
    "--core": "rnn-type use-rnn use-lstm lstm recurrent use-recurrent rnn",
    "--desired-kl": "kl-target",
    "--dual-clip": "dual-clip-coef",
    "--encoder": "cnn encoder-type conv-filters encoder-conv-architecture",
    "--encoder-sizes": "net-arch hidden-dims actor-hidden-dims critic-hidden-dims fcnet-hiddens hidden-sizes "
    "encoder-mlp-layers mlp-layers",
    "--entropy-coef": "ent-coef ent-coeff entropy-coeff entropy-cost entropy-loss-coeff entropy exploration-loss-coeff",
    "--env": "env-id gym-id environment env-name game",
    "--env-kwargs": "env-config env-args",
    "--epochs": "n-epochs update-epochs num-epochs num-sgd-iter num-learning-epochs ppo-epoch ppo-epochs noptepochs "
    "mini-epochs num-updates-per-batch",
    "--episodes": "n-eval-episodes num-episodes n-episodes eval-episodes max-num-episodes",
    "--eval-episodes": "n-eval-episodes evaluation-duration",
    "--eval-every": "eval-interval evaluation-interval",
    "--gae-lambda": "lam lambda tau gae-lam gae",
    "--gamma": "discount discounting discount-factor",
    "--hidden-size": "rnn-size lstm-hidden-size lstm-cell-size rnn-hidden-size rnn-hidden-dim lstm-size hidden-dim",
    "--info-keys": "info-keywords monitor-keywords",
    "--init-from": "load-run load-model load-model-path load-checkpoint pretrained checkpoint-path trained-agent",
    "--layer-norm": "use-layer-norm",
    "--learning-rate": "lr base-lr",
    "--log-std-init": "init-noise-std initial-stddev init-log-std",
    "--max-grad-norm": "grad-clip clip-grad-norm grad-norm max-grad truncate-grads",
    "--minibatches": "num-minibatches n-minibatches num-mini-batches nminibatches num-batches-per-epoch",
    "--normalize-obs": "norm-obs normalize-input obs-norm normalize-observations empirical-normalization",
    "--normalize-reward": "norm-reward normalize-returns normalize-rewards reward-norm",
    "--num-envs": "n-envs num-environments num-processes num-actors env-agents",
    "--num-layers": "n-lstm-layers rnn-num-layers num-rnn-layers lstm-layers rnn-layers",
    "--optimizer": "optim optimizer-class",
    "--out": "output output-file",
    "--quiet": "silent",
    "--resume": "restart-behavior restore continue load-run-dir",
    "--rollout-steps": "n-steps num-steps nsteps rollout rollout-length rollout-fragment-length num-steps-per-env "
    "horizon horizon-length unroll-length steps-per-rollout",
    "--run-dir": "exp-name experiment experiment-name train-dir save-path save-dir logdir log-dir log-folder "
    "output-dir data-dir storage-path name",
    "--seq-len": "recurrence max-seq-len seq-length sequence-length",
    "--target-kl": "target-kl-divergence max-kl kl-threshold",
    "--total-steps": "total-timesteps n-timesteps num-timesteps timesteps train-for-env-steps num-env-steps "
    "total-env-steps max-env-steps timesteps-total stop-timesteps steps",
    "--value-clip": "clip-vloss clip-value clip-value-loss use-clipped-value-loss",
    "--video": "capture-video record-video save-video video-folder",
    "--workers": "num-workers n-workers num-env-runners num-rollout-workers n-jobs nproc num-cpus",
}
"""Names of other trainers by the flag that means the same here."""

EXPLAINED = {
    "use --minibatches; M = --num-envs * --rollout-steps / B gives minibatches of B steps": (
        "batch-size minibatch-size mini-batch-size sgd-minibatch-size"
    ),
    "use --rollout-steps; T = B / --num-envs gives batches of B steps": (
        "train-batch-size train-batch-size-per-learner steps-per-epoch timesteps-per-batch buffer-size"
    ),
    "use --num-envs, which counts the environments of all workers together": (
        "num-envs-per-worker num-envs-per-env-runner num-envs-per-actor envs-per-worker"
    ),
    "use --total-steps, which counts environment steps: iterations * --num-envs * --rollout-steps": (
        "max-iterations num-iterations num-learning-iterations iterations num-updates max-epochs training-iteration"
    ),
    "use --value-coef, the weight of half the squared error; it is twice the vf_coef of Stable-Baselines3 or RLlib": (
        "vf-coef vf-coeff vf-loss-coeff value-loss-coef value-loss-coeff value-coeff critic-coef vf-loss-weight "
        "value-loss-weight"
    ),
    "use --value-clip, which limits the change to the range of --clip": (
        "clip-range-vf vf-clip-coef vf-clip-param ppo-clip-value"
    ),
    "use --clip; here the ratio is clipped to 1 - clip ... 1 + clip": "ppo-clip-ratio",
    "use --seq-len, the steps of backpropagation through time; --rollout-steps is the length of the rollout": (
        "bptt-horizon"
    ),
    "use --eval-every, in iterations: the value of Stable-Baselines3 divided by --rollout-steps": "eval-freq",
    "use --keep-every, in iterations: the value of Stable-Baselines3 divided by --rollout-steps": "save-freq",
    "use --workers; each worker steps a part of the environments": "vec-env vec-env-type vec-env-cls vectorization",
    "use --normalize-obs and --normalize-reward, which are on by default": "vec-normalize vecnormalize normalize",
    "use --device cuda": "cuda gpu use-cuda use-gpu num-gpus num-gpus-per-learner",
    "use --lr-schedule linear, which is the default": "anneal-lr use-linear-lr-decay lr-anneal linear-decay",
    "use --lr-schedule {linear,constant,kl-adaptive}": "schedule learning-rate-schedule lr-decay lr-scheduler",
    "use --objective penalty with --penalty-coef": "kl-coeff kl-coef kl-loss-coeff kl-penalty use-kl-loss",
    "use --core, --hidden-size, and --encoder-sizes, or --network for your own": (
        "policy policy-kwargs model policy-name"
    ),
    "use --encoder, or --network for a network of your own": (
        "features-extractor features-extractor-class features-extractor-kwargs feature-extractor"
    ),
    "use --separate-critic {none,core,all}; all gives the critic its own layers, none shares them": (
        "enable-critic-lstm separate shared-lstm vf-share-layers share-features-extractor actor-critic-share-weights "
        "share-weights"
    ),
    "use --track wandb": "wandb use-wandb with-wandb",
    "use --track wandb with the environment variable WANDB_MODE=offline, online, or disabled": "wandb-mode",
    "use --track wandb with the environment variables WANDB_PROJECT, WANDB_RUN_GROUP, WANDB_NAME, and WANDB_TAGS": (
        "wandb-project wandb-project-name wandb-group wandb-group-name wandb-name wandb-tags wandb-entity wandb-team"
    ),
    "use --track tensorboard": "tensorboard tensorboard-log tb tb-log",
    "use --eval-videos, which records an episode of each evaluation": (
        "capture-video record-video save-video video-interval"
    ),
    "use --env-kwargs frame_skip=N, or a wrapper of --wrappers": "frame-skip frameskip env-frameskip action-repeat",
    'use --wrappers "FrameStackObservation(stack_size=N)"': "frame-stack framestack env-framestack n-stack",
    "checkpoints are always written; --checkpoint-every and --keep-every write more": "save-model save",
    "leave it out: runs on the CPU are bitwise reproducible": "torch-deterministic deterministic-torch serial-mode",
    "leave it out: episodes are evaluated with the most likely actions unless --stochastic is given": "deterministic",
    "leave it out: normalized observations are always clipped to -10 ... 10": "clip-obs clip-observations obs-clip",
    "leave it out: each worker is replaced up to three times within an hour": (
        "max-restarts max-num-env-runner-restarts"
    ),
    "leave it out: values outside the observation space only cause a warning": "allow-out-of-bounds",
    "leave it out: use more cores with --learning sharded": "learner-threads num-threads torch-threads",
    "leave it out: the last two checkpoints are kept, and --keep-every keeps more": "keep-checkpoints",
    "leave it out: a checkpoint is written every ten minutes, and --checkpoint-every writes more": (
        "checkpoint-minutes save-every-sec"
    ),
    "leave it out: the algorithm is PPO": "algo algorithm algo-name",
    "leave it out: the standard deviation of the actions does not depend on the state": (
        "use-sde gsde sde sde-sample-freq"
    ),
    "leave it out: return_mean_100 always covers 100 episodes": "stats-window-size",
    "leave it out: --normalize-reward scales rewards": "reward-scale reward-scaling reward-shaping",
    "leave it out: progress is always shown unless --quiet is given": "verbose progress progress-bar log-interval",
}
"""Names of other trainers by the sentence that says what to do instead."""


def refuse_foreign_flags(words: Sequence[str], known: Collection[str], positional: Collection[str] = ()) -> None:
    """Raise ConfigError for flags that other trainers have, with what to use instead.

    Args:
        words: the command line.
        known: the flags of the command.
        positional: arguments of the command that are written without a flag, as flags.
    """
    found = []
    for given in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = given.replace("_", "-")
        if name in known or name.replace("--no-", "--", 1) in known:
            continue
        if any(name.rstrip("s") == argument.rstrip("s") for argument in positional):
            found.append(f"{given} is not a flag; write its value without it")
        elif remedy := remedy_for(name, known):
            found.append(f"there is no flag {given}; {remedy}")
    require(not found, "; ".join(found))


def remedy_for(given: str, known: Collection[str]) -> str:
    """Return what to use instead of a flag of another trainer. Empty if it is unknown.

    Args:
        given: the flag.
        known: the flags of the command.
    """
    own = given.lstrip("-").replace("_", "-").lower().rpartition(".")[2]  # PufferLib groups flags: --train.gamma
    if f"--{own}" in known:
        return f"use --{own}"
    remedies = [(f"use {flag}", names) for flag, names in RENAMED.items()] + list(EXPLAINED.items())
    fitting = [text for text, names in remedies if own in names.split() and set(flags_in(text)) <= set(known)]
    return fitting[0] if fitting else ""


def field_hint(name: str, known: Collection[str]) -> str:
    """Return what to use instead of an unknown field of a configuration, as the end of a sentence.

    Args:
        name: of the unknown field.
        known: the fields.
    """
    remedy = remedy_for(name, [f"--{field.replace('_', '-')}" for field in known])
    if remedy:
        return "; " + re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), remedy)
    return nearest(name, known)


def flags_in(text: str) -> list[str]:
    """Return the flags that a text names."""
    return re.findall(r"--[a-z][a-z-]*", text)
