"""Judge the outcome of a random configuration. An outcome is a word and a message; "wrong" marks a defect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from figures.common.campaigns import WRONG
from shmppo.config.train_config import TrainConfig, from_json
from shmppo.errors import ConfigError, EnvError, ShmppoError, TrainingError, WorkerError

Outcome = tuple[str, str]
"""An outcome and its message: accepted, trained, refused, ended, or wrong."""
SECOND_SENTENCE = re.compile(r"[a-z)]\. [A-Z]")


def is_sentence(text: str) -> bool:
    """Return whether a message is one sentence on one line."""
    return bool(text.strip()) and "\n" not in text and not SECOND_SENTENCE.search(text)


def judge_validation(result: TrainConfig | BaseException) -> Outcome:
    """Judge a configuration that was accepted, or the exception that refused it."""
    if isinstance(result, TrainConfig):
        again = from_json(json.loads(json.dumps(result.to_json())))
        if again.to_json() != result.to_json():
            return WRONG, "another configuration after a round trip through JSON"
        return "accepted", ""
    if not isinstance(result, ConfigError):
        return WRONG, f"{type(result).__name__}: {result}"
    return judge_refusal(str(result))


def judge_refusal(text: str) -> Outcome:
    """Judge the message of a refused configuration. The message of the outcome is its first flag."""
    if not is_sentence(text):
        return WRONG, f"not one sentence: {text}"
    named = re.search(r"--[a-z][\w-]*", text)
    return "refused", named[0] if named else text[:60]


def judge_variants(results: Mapping[str, Mapping[str, Any] | BaseException]) -> Outcome:
    """Judge the runs of one configuration: all trained with one hash, all refused, or all ended by an error.

    Args:
        results: variant -> its summary, or the exception that ended it.
    """
    errors = {name: result for name, result in results.items() if isinstance(result, BaseException)}
    foreign = {name: error for name, error in errors.items() if not isinstance(error, ShmppoError)}
    if foreign:
        return WRONG, "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in foreign.items())
    if errors and len(errors) < len(results):
        return WRONG, "; ".join(f"{name}: {errors.get(name, 'trained')}" for name in results)
    refused = [error for error in errors.values() if isinstance(error, ConfigError)]
    if refused and len(refused) == len(results):
        return judge_refusal(str(refused[0]))
    if errors:
        several = [str(error) for error in errors.values() if not is_sentence(str(error))]
        allowed = all(isinstance(error, (EnvError, TrainingError, WorkerError)) for error in errors.values())
        return ("ended", str(next(iter(errors.values())))) if allowed and not several else (WRONG, str(errors))
    summaries = {name: result for name, result in results.items() if not isinstance(result, BaseException)}
    exact = {name: summary["weights_sha256"] for name, summary in summaries.items() if summary["exact"]}
    silent = [name for name, summary in summaries.items() if not summary["exact"] and not summary["inexact_reasons"]]
    if silent:
        return WRONG, f"not exact, but without a reason: {silent}"
    if len(set(exact.values())) > 1:
        return WRONG, f"several hashes: { ({name: value[:12] for name, value in exact.items()}) }"
    reasons = sorted({reason for summary in summaries.values() for reason in summary["inexact_reasons"]})
    return "trained", "; ".join(reasons)


def judge_command(exit_code: int, stderr: str, files: Sequence[str]) -> Outcome:
    """Judge a finished command `train`.

    Args:
        exit_code: its exit code.
        stderr: its text on stderr.
        files: names of the files in the run directory.
    """
    errors = [line for line in stderr.splitlines() if line.startswith("error:")]
    if "Traceback" in stderr:
        return WRONG, f"code {exit_code}, a traceback: {stderr[-400:]}"
    if exit_code == 0:
        done = not errors and "summary.json" in files
        return ("trained", "") if done else (WRONG, f"code 0, but {errors or 'no summary.json'}")
    if exit_code not in (1, 2):
        return WRONG, f"code {exit_code}: {stderr[-400:]}"
    if len(errors) != 1 or not stderr.rstrip().endswith(errors[0]) or not is_sentence(errors[0]):
        return WRONG, f"code {exit_code}, {len(errors)} error lines: {stderr[-400:]}"
    if exit_code == 1:
        return "ended", errors[0]
    return (WRONG, f"code 2, but files were written: {list(files)}") if files else judge_refusal(errors[0])
