"""The recording of KL profiles in a run."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.kl_profile.options import ProfileOptions
from shmppo.extensions.kl_profile.profile import KLRecorder, write_profile
from shmppo.lockstep.feature import Feature
from shmppo.models.actor_critic import ActorCritic
from shmppo.ppo.gradients import ShardGradients
from shmppo.storage.run_directory import saving


class KLRecording(Feature):
    """Records a profile every --kl-profile-every updates, and writes it."""

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return ProfileOptions.of(config).kl_profile_every is not None

    def start(self, model: ActorCritic) -> None:
        gradients = ShardGradients(self.config, self.task.distribution, model, self.buffers)
        self._recorder = KLRecorder(self.config, self.task.distribution, gradients)

    def begin_update(self, iteration: int) -> None:
        every = ProfileOptions.of(self.config).kl_profile_every
        self._records = self.watches_steps = every is not None and iteration % every == 0
        if self._records:
            self._recorder.begin(self.buffers.minibatches)

    def after_optimizer_step(self, steps: int) -> None:
        if self._records:
            self._recorder.record(steps)

    def end_update(self, iteration: int, steps: int) -> None:
        if self._records:
            profile = self._recorder.end(steps)
            with saving(self.run_dir):
                write_profile(self.run_dir, iteration + 1, profile)


FEATURE = KLRecording
