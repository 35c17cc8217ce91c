"""Films of episodes: frames from Gymnasium's rendering into an mp4 or a gif."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.errors import ConfigError

NEEDED = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}


def check_video(path: Path, flag: str = "--video") -> None:
    """Raises ConfigError, naming the flag, for a file of another kind, or a library that is not installed."""
    if path.suffix not in NEEDED:
        raise ConfigError(f"{flag} {path} ends in neither .mp4 nor .gif; name a file that does")
    missing = [name for name in NEEDED[path.suffix] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{flag}: {path.name} needs {' and '.join(missing)}; pip install 'shmppo[video]'")


def render_without_display() -> None:
    """Let MuJoCo draw by EGL or OSMesa where there is no display and nothing was chosen; before anything is drawn."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # what pygame draws with
    software_only = ctypes.util.find_library("OSMesa") and not ctypes.util.find_library("EGL")
    os.environ.setdefault("MUJOCO_GL", "osmesa" if software_only else "egl")


class VideoRecorder:
    """One file of frames. A context manager; the file is whole when it ends."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError as `check_video` does."""
        check_video(path)
        self.path = path
        self._writer: Any = None

    def __enter__(self) -> VideoRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, frame: Any, fps: float) -> None:
        """Append what `env.render()` returned.

        Args:
            frame: [height, width, 3] uint8.
            fps: frames per second of the whole film; the first frame's counts.

        Raises:
            ConfigError: if the environment drew something else, or the file cannot be written.
        """
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            drawn = type(frame).__name__
            raise ConfigError(f"--video {self.path}: the environment drew {drawn}; it must draw rgb_array frames")
        try:
            if self._writer is None:
                self._writer = self._open(fps)
            self._writer.append_data(frame)
        except (OSError, ValueError, TypeError) as error:  # the disk's, or the frame's where its size or type changes
            raise ConfigError(
                f"--video {self.path} cannot be written: {error}; name another file, or draw frames of one "
                "size, [height, width, 3] of uint8"
            ) from error

    def _open(self, fps: float) -> Any:
        import imageio

        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.suffix == ".gif":
            return imageio.get_writer(self.path, mode="I", duration=1000 / fps, loop=0)
        return imageio.get_writer(self.path, fps=fps, macro_block_size=2)
