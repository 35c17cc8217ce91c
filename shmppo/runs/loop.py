"""The training loop."""

from __future__ import annotations

from contextlib import ExitStack

from shmppo.lockstep.pool import Collect
from shmppo.ppo.gae import compute_advantages
from shmppo.ppo.minibatches import build_minibatches
from shmppo.runs.handle import RunHandle
from shmppo.runs.session import Session
from shmppo.utils.torch_utils import numeric_modes


def train_iterations(session: Session) -> None:
    """Train until the last iteration or a request to stop: rollout → advantages → minibatches → update → metrics."""
    config, state, learner, pool = session.config, session.state, session.learner, session.pool
    timer, buffers, group, run = pool.timer, session.buffers, session.process_group, RunHandle(session)
    rollout = buffers.rollout
    while state.iteration < config.last_iteration and not session.stopping:
        iteration = state.iteration
        timer.switch("publish")
        state.publish_options()
        with numeric_modes():  # whatever the callback or the schedule of options sets
            learner.publish_statistics(iteration)
            with ExitStack() as features:
                for feature in session.features:
                    features.enter_context(feature.around_rollout(iteration))
                session.execute(Collect(iteration))  # once more if an environment draws from a global generator
            state.log_actions(rollout)
            timer.switch("advantage")
            advantages = compute_advantages(config, rollout, learner.reward_normalizer, group)
            build_minibatches(
                config, rollout, buffers.minibatches, iteration=iteration, advantages=advantages, process_group=group
            )
            timer.switch("other")
            statistics = learner.update(iteration, pool)
            learner.update_obs_normalizer(rollout)
            due = config.eval_every is not None and (iteration + 1) % config.eval_every == 0
            evaluation = session.evaluate() if due else {}
            times = pool.take_times()
            row = state.finish_iteration(rollout, advantages, statistics, times)
            session.outputs.metrics.write(row, state.hashes())
            session.outputs.episodes.write_rows([state.iteration, *episode] for episode in state.episodes.own)
            session.after_iteration(row, times, evaluation, run)
