"""The JSON files of a run: every content of another form is refused in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shmppo import replay
from shmppo.config.schemas import FAILED_EPISODE_FILE, config_digest, read_object, with_checksum
from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError
from shmppo.plotting.curves import read_columns

CONFIG = json.loads(json.dumps(TrainConfig(env="CartPole-v1", num_envs=4, workers=0).to_json()))
EPISODE: dict[str, Any] = {
    "config": CONFIG, "env_index": 1, "episode": 0, "iteration": 1, "failed_iteration": 1, "seed": 7,
    "actions": [[0.0], [1.0]], "message": "a test",
}  # fmt: skip
NOT_JSON = {
    b"": "Expecting value",
    b"{": "Expecting property name",
    b"\xff\xfe\x00": "can't decode byte 0xff",
    b"[" * 100_000: "nested too deeply",
}
NOT_AN_OBJECT = {"[]": r"it is \[\] instead of an object", "null": "it is null", "3": "it is 3", '"a"': 'it is "a"'}


@pytest.mark.parametrize("content", NOT_JSON)
def test_files_that_are_not_json_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    message = rf"^{file} is damaged \(.*{NOT_JSON[content]}.*\); restore it or start a new run$"
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, rf" is damaged \({reason}.*\); restore it or start") for text, reason in NOT_AN_OBJECT.items()),
        ("{}", r" is damaged \(the key config is missing\)"),
        ('{"config": [1]}', r" is damaged \(config is \[1\], which must be an object\)"),
        ('{"config": {"seed": NaN}}', r" is damaged \(it contains NaN\)"),
        ('{"config": {"seed": "one"}}', ": --seed is 'one'; it must be int"),
        ('{"config": {"sed": 1}}', r": there is no field sed.*seed"),
    ],
)  # fmt: skip
def test_a_config_of_another_form_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=f"^{tmp_path / 'config.json'}{message}"):
        load_config(tmp_path)


def test_the_digest_depends_on_the_content_only(tmp_path: Path) -> None:
    file, digests = tmp_path / "config.json", []
    contents = [{"config": {"a": 1, "b": 2}}, {"config": {"b": 2, "a": 1}}, {"config": {"a": 1, "b": 3}}]
    for indent, content in zip((2, 4, 2), contents, strict=True):
        file.write_text(json.dumps(content, indent=indent))
        digests.append(config_digest(file))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, rf" is damaged \({reason}") for text, reason in NOT_AN_OBJECT.items()),
        (EPISODE | {"env_index": -1}, r" is damaged \(env_index is -1, which must be a whole number of at least 0\)"),
        (EPISODE | {"env_index": 4}, ": env_index is 4, but the run has 4 environments; restore it"),
        (EPISODE | {"episode": True}, r" is damaged \(episode is true"),
        (EPISODE | {"actions": [[0.0], [1.0, 2.0]]}, r" is damaged \(actions is .* of equal length\)"),
        (EPISODE | {"actions": [[0.0], [float("nan")]]}, r" is damaged \(it contains NaN\)"),
        (EPISODE | {"actions": [[float("inf")]]}, r" is damaged \(actions is"),
        (EPISODE | {"actions": [[1e300]]}, r" is damaged \(actions is"),
        (EPISODE | {"actions": []}, " has actions that do not fit CartPole-v1"),
        (EPISODE | {"actions": [[0.0, 1.0]]}, " has actions that do not fit CartPole-v1, whose actions have 1 numbers"),
        (EPISODE | {"config": {"seed": "one"}}, ": --seed is 'one'; it must be int"),
        ({k: v for k, v in EPISODE.items() if k != "actions"}, r" is damaged \(the key actions is missing\)"),
        (with_checksum(EPISODE) | {"episode": 1}, r" is damaged \(its checksum differs\)"),
    ],
)  # fmt: skip
def test_replay_refuses_an_episode_of_another_form(
    content: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failed_episode.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["replay", str(file)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert replay.main() == 2
    error = capsys.readouterr().err
    with pytest.raises(AssertionError, match=f"^error: {file}{message}"):
        raise AssertionError(error)
    assert len(error.splitlines()) == 1


def test_an_undamaged_episode_is_read(tmp_path: Path) -> None:
    file = tmp_path / "failed_episode.json"
    file.write_text(json.dumps(with_checksum(EPISODE), indent=2))
    found = read_object(file, FAILED_EPISODE_FILE, "")
    assert {name: found[name] for name in EPISODE} == EPISODE


@pytest.mark.parametrize("content", [b"iteration\r\n\xff\r\n", b"iteration\r\nthree\r\n", b"iteration\r\n1,2\r\n"])
def test_a_table_that_is_not_numbers_is_refused_by_plots(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{tmp_path / 'metrics.csv'} is damaged \(.*\); restore it, or name"):
        read_columns(tmp_path / "metrics.csv")
