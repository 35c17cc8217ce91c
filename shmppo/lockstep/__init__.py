"""Lock-step: the learner, its workers, and the commands between them."""
