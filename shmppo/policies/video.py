"""Videos of episodes: write the frames of `env.render()` to an mp4 or gif file.

Without a graphics card, MuJoCo draws on the processor. Shadows then take most of the time, so they are switched off.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.errors import ConfigError
from shmppo.utils.files import make_parent_directory

MAX_FPS = 30.0
"""Highest frame rate of a video. Environments with shorter steps are rendered every second step, every third, …"""


def render_without_display() -> None:
    """Configure MuJoCo and pygame to render without a display, if there is none.

    This sets environment variables, so call it before an environment renders. It does not change variables that are set
    already. MuJoCo uses EGL, or OSMesa if only OSMesa is installed.
    """
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # for environments that render with pygame
    software_only = ctypes.util.find_library("OSMesa") and not ctypes.util.find_library("EGL")
    os.environ.setdefault("MUJOCO_GL", "osmesa" if software_only else "egl")


def simplify_mujoco(env: Any) -> None:
    """Let MuJoCo render without shadows, reflections, and antialiasing. Other environments do not change.

    On a processor, a HalfCheetah frame takes 160 ms with them and 13 ms without. Call this before the first frame. The
    simulation does not depend on these settings.

    Args:
        env: the environment without wrappers.
    """
    quality = getattr(getattr(getattr(env, "model", None), "vis", None), "quality", None)
    if quality is not None:
        quality.shadowsize = quality.offsamples = 0
        env.model.mat_reflectance[:] = 0.0


class VideoRecorder:
    """Writes frames to one video file. Use it as a context manager; the file is complete after the block."""

    def __init__(self, path: Path) -> None:
        """Make the directory of the video. The file is created with the first frame.

        Raises:
            ConfigError: if the file is neither mp4 nor gif, if a library is not installed, or if no file can be made in
                the directory.
        """
        require(path.suffix in (".mp4", ".gif"), f"--video {path} ends in neither .mp4 nor .gif; name a file that does")
        installed = importlib.util.find_spec("imageio_ffmpeg") is not None
        require(installed, "videos need imageio with ffmpeg; pip install 'shmppo[video]'")
        make_parent_directory(path, "--video")
        self.path = path
        self._writer: Any = None

    def __enter__(self) -> VideoRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, frame: Any, fps: float) -> None:
        """Append one frame to the video.

        Args:
            frame: result of `env.render()`, uint8 [height, width, 3].
            fps: frames per second of the video. Only the value of the first call is used.

        Raises:
            ConfigError: if the frame is not an array with three axes, or if the file cannot be written.
        """
        given = f"an array {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        require(
            isinstance(frame, np.ndarray) and frame.ndim == 3,
            f"{self.path}: env.render() returned {given}; it must return an rgb_array frame, [height, width, 3]",
        )
        try:
            if self._writer is None:
                self._writer = self._open(fps)
            self._writer.append_data(frame)
        except (OSError, RuntimeError, TypeError, ValueError) as error:  # for example, the size of the frame changed
            raise ConfigError(
                f"{self.path} cannot be written: {error}; name another file, or make sure that all frames have "
                "the same size, [height, width, 3], and are uint8"
            ) from error

    def _open(self, fps: float) -> Any:
        """Open the file and return an imageio writer."""
        import imageio

        if self.path.suffix == ".gif":
            return imageio.get_writer(self.path, mode="I", duration=1000 / fps, loop=0)
        # The encoder runs beside the renderer, so a fast preset saves time; the file is a little larger.
        return imageio.get_writer(self.path, fps=fps, macro_block_size=2, output_params=["-preset", "veryfast"])
