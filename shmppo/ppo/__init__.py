"""The PPO update: advantages, minibatches, losses, gradients, and the learner."""
