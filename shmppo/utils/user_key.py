"""The secret key of this user on this machine, and signatures of texts with it.

The key is in the user's state directory, `$XDG_STATE_HOME/shmppo/key` or `~/.local/state/shmppo/key`. It is made when
the first text is signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path

KEY_BYTES = 32


class NoKeyError(Exception):
    """There is no key that can be used. The message says why, as the end of a sentence."""


def key_path() -> Path:
    """Return the path of the key. Raises NoKeyError if the user has no home directory."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(base):  # the specification says to ignore a relative path
        return Path(base) / "shmppo" / "key"
    try:
        return Path.home() / ".local" / "state" / "shmppo" / "key"
    except RuntimeError as error:
        raise NoKeyError("this user has no home directory") from error


def signature(text: str) -> str:
    """Return the HMAC-SHA256 of a text with the key of this user, which is made if there is none.

    Raises:
        NoKeyError: if the key can be neither read nor made.
    """
    path = key_path()
    try:
        with contextlib.suppress(FileNotFoundError):
            return _signature(_read(path), text)
        _create(path)
        return _signature(_read(path), text)
    except OSError as error:
        raise NoKeyError(f"{path} can be neither read nor made ({error.strerror})") from error


def is_signature(found: object, text: str) -> bool:
    """Return whether `found` is what `signature(text)` returns. No key is made; without a key nothing is signed."""
    try:
        expected = _signature(_read(key_path()), text)
    except (OSError, NoKeyError):
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(errors="replace"), expected.encode())


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _read(path: Path) -> bytes:
    """Read the key. Raises NoKeyError if another user may know it, or if it is incomplete."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise NoKeyError(f"{path} is not a file that only this user can read and write (chmod 600)")
        key = file.read()
    if len(key) != KEY_BYTES:
        raise NoKeyError(f"{path} does not contain {KEY_BYTES} bytes; delete it")
    return key


def _create(path: Path) -> None:
    """Create the key if there is none. A reader sees the complete key or no file, and the first process wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, temporary = tempfile.mkstemp(prefix="key.", dir=path.parent)  # with the mode 0600
    try:
        with open(number, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(number)
        with contextlib.suppress(FileExistsError):  # another process has made it
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
