"""The defects of an older version, and the tests of each."""

from __future__ import annotations

_ACTION = "system/test_policy_input.py"
_CHANGED = "system/test_changed_resume.py::test_a_change_of_the_weights_is_refused_with_the_command_for_a_new_run"
_DAMAGED = "system/test_damaged_files.py"
_FAULTS = "system/test_host_faults.py"
_LIMITS = f"{_FAULTS}::test_a_run_with_a_limit_works_or_is_refused_in_one_sentence"
_LOCK = "system/test_run_lock.py"
_PROCESSES = "system/test_processes.py"
_SECURITY = "system/test_security.py"
_START = "system/test_worker_start.py"
_VALUES = "system/test_bad_values.py"

DEFECTS: dict[str, list[str]] = {
    "other bits with other numbers of workers": ["system/test_odd_sizes.py::test_a_known_configuration_gives_one_hash"],
    "hidden state of an environment": ["system/test_hidden_state.py"],
    "options changed by a resume": [
        *(f"{_CHANGED}[{name}]" for name in ("learning_rate", "gamma")),
        "system/test_changed_resume.py::test_another_annealing_of_finished_iterations_makes_the_run_inexact_for_good",
    ],
    "damaged checkpoints": [f"{_DAMAGED}::test_no_flipped_bit_of_the_checkpoint_gives_another_policy"],
    "two runs in one directory": [
        f"{_LOCK}::test_a_run_that_still_trains_is_not_resumed",
        f"{_LOCK}::test_runs_that_start_in_the_same_second_get_directories_of_their_own",
        f"{_LOCK}::test_a_directory_without_a_run_is_used_by_one_of_two_runs",
    ],
    "code from data": [
        *(
            f"{_SECURITY}::test_a_run_of_this_user_can_be_moved_and_one_of_others_imports_nothing[{use}]"
            for use in ("load_policy", "resume")
        ),
        f"{_SECURITY}::test_a_command_refuses_the_code_of_others_in_one_line[replay]",
        f"{_SECURITY}::test_what_makes_no_environment_is_not_called",
        f"{_SECURITY}::test_a_network_is_made_by_a_class_or_function",
    ],
    "failures while episodes are restored": [
        "system/test_skipped_episodes.py::test_an_episode_that_fails_while_it_is_restored_is_skipped"
    ],
    "sys.exit in an environment": [
        f"{_SECURITY}::test_an_environment_that_exits_ends_the_run_with_an_error",
        f"{_SECURITY}::test_a_network_that_exits_ends_the_command_with_an_error",
    ],
    "a stopped evaluator and a killed learner": [
        f"{_PROCESSES}::test_nothing_is_left_when_the_learner_is_killed[True]"
    ],
    "a removed run directory": [
        f"{_FAULTS}::test_a_run_whose_directory_is_removed_ends_with_a_checkpoint_in_a_new_one",
        f"{_FAULTS}::test_a_run_whose_directory_was_replaced_does_not_write_to_the_other_one",
    ],
    "tracebacks for bad values": [
        f"{_VALUES}::test_a_value_that_no_run_can_use_is_refused_in_one_line",
        f"{_VALUES}::test_a_variable_of_torchrun_that_is_no_number_is_refused_in_one_line",
    ],
    "tracebacks for damaged files": [
        f"{_DAMAGED}::test_a_missing_newest_checkpoint_is_replaced_by_the_one_before",
        f"{_DAMAGED}::test_a_checkpoint_without_a_key_is_refused",
        f"{_DAMAGED}::test_damage_is_reported_before_a_run_resumes",
        f"{_DAMAGED}::test_replay_refuses_an_episode_of_another_form",
    ],
    "values that do not belong to a space": [
        f"{_ACTION}::test_a_policy_refuses_what_is_no_observation_or_state",
        f"{_ACTION}::test_a_policy_refuses_a_previous_action_that_is_no_action",
        f"{_ACTION}::test_no_run_trains_on_an_observation_that_does_not_belong_to_its_space",
    ],
    "workers that fail while they start": [
        f"{_START}::test_a_worker_that_fails_while_it_starts_is_replaced",
        f"{_START}::test_a_worker_that_fails_at_every_start_ends_the_run_with_the_reason",
        f"{_START}::test_an_environment_that_raises_at_resume_is_started_again",
    ],
    "full disks": [
        f"{_FAULTS}::test_a_run_on_a_disk_with_a_fault_warns_and_ends_with_a_summary_and_an_error",
        f"{_FAULTS}::test_the_command_prints_the_summary_and_one_error_and_fails_if_nothing_could_be_saved",
    ],
    "an evaluation that hangs": [f"{_PROCESSES}::test_the_first_signal_ends_the_wait_for_an_evaluation_that_hangs"],
    "tracebacks for limits of the machine": [
        *(
            f"{_LIMITS}[{limit}]"
            for limit in (
                "files of 10 KiB",
                "600 MB of addresses",
                "long TMPDIR",
                "read-only shared memory",
                "no inodes",
            )
        ),
        f"{_FAULTS}::test_a_run_trains_if_the_caller_has_disabled_gradients",
        f"{_FAULTS}::test_a_tensorboard_directory_with_a_fault_gives_one_warning",
        "runs/test_process_checks.py::test_a_daemonic_process_trains_without_workers_and_refuses_to_start_some",
        "runs/test_process_checks.py::test_an_interrupt_that_an_environment_raises_is_a_failure_of_the_environment",
        f"{_PROCESSES}::test_a_worker_that_is_killed_is_replaced[True]",
    ],
    "leftovers of killed processes": [
        f"{_PROCESSES}::test_a_stopped_rank_and_a_killed_torchrun_leave_nothing_behind",
        f"{_PROCESSES}::test_nothing_is_left_when_the_learner_is_killed[False]",
    ],
    "a process that was forked after a run": [
        "runs/test_process_checks.py::test_a_process_that_was_forked_after_training_is_refused"
    ],
    "two runs in two threads": [
        f"{_FAULTS}::test_a_second_run_in_another_thread_is_refused_and_the_first_one_is_not_disturbed",
    ],
    "rewards beyond float32": [
        "system/test_skipped_episodes.py::test_a_reward_beyond_float32_names_the_environment_and_can_be_skipped"
    ],
}
"""Defect -> tests below tests/."""
