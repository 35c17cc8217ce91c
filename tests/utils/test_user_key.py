"""The key of the user: where it is, who can read it, two processes that make it, and homes without one."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmppo.utils import user_key
from shmppo.utils.user_key import NoKeyError, is_signature, key_path, signature


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_key_is_made_for_this_user_only_and_signs_texts(state: Path) -> None:
    assert not is_signature("0" * 64, "a")
    assert not key_path().exists(), "a check makes no key"
    signed = signature("a")
    assert key_path() == state / "shmppo" / "key"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert len(key_path().read_bytes()) == 32
    assert [path.name for path in key_path().parent.iterdir()] == ["key"]
    assert signature("a") == signed != signature("b")
    assert is_signature(signed, "a")
    for wrong in (signed[:-1], signed.upper(), "ü\ud800", "", None, 3, [signed]):
        assert not is_signature(wrong, "a")
    key_path().write_bytes(bytes(32))
    assert not is_signature(signed, "a"), "the key of another user"


def test_without_a_state_directory_in_the_environment_the_key_is_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in (None, "relative"):
        if base is None:
            monkeypatch.delenv("XDG_STATE_HOME")
        else:
            monkeypatch.setenv("XDG_STATE_HOME", base)
        assert key_path() == tmp_path / ".local" / "state" / "shmppo" / "key"


def test_processes_that_make_the_key_together_use_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has seen that there is none."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: user_key._create(key_path()), range(8)))
    first = signature("a")
    user_key._create(key_path())
    assert signature("a") == first


@pytest.mark.parametrize("case", ["others can read it", "incomplete", "a directory", "a link", "file above", "no home"])
def test_a_key_that_cannot_be_used_is_no_key(
    case: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = signature("a")
    path = key_path()
    if case == "others can read it":
        path.chmod(0o640)
    elif case == "incomplete":
        path.write_bytes(b"short")
    elif case == "a directory":
        path.unlink()
        path.mkdir()
    elif case == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif case == "file above":
        path.unlink()
        path.parent.rmdir()
        path.parent.touch()
    else:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(NoKeyError):
        signature("a")
    assert not is_signature(signed, "a")


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_home_directory_that_cannot_be_written_has_no_key(state: Path) -> None:
    state.mkdir(mode=0o500)
    with pytest.raises(NoKeyError, match="can be neither read nor made"):
        signature("a")
