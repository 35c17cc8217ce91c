"""The update: advantages, minibatches, gradients, the learner."""
