"""Search for good hyperparameters with Optuna: `python -m shmppo.search --trials 27 -- --env …`.

Modules:

- `options`: the flags.
- `space`: which options a trial varies.
- `study`: the Optuna study, which samples the trials bracket by bracket.
- `trial_run`: one training run of a trial, in a process of its own.
- `scheduler`: successive halving, which pauses trials at rungs and continues the best of them from their checkpoints.
- `report`: the table on the terminal, and the files at the end.
"""
