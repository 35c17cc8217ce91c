"""The JSON files of a run: every content of another form is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
