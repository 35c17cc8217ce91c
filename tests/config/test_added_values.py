"""Values that extensions add to an option of the core."""

from __future__ import annotations

import typing

from shmppo.config.command_line import field_texts
from shmppo.config.extensions import added_values
from shmppo.config.train_config import TrainConfig, field_types
from shmppo.search.options import SearchOptions


def test_an_option_has_the_added_values_and_its_text_their_sentences() -> None:
    for option, own in (("objective", ("clip", "penalty")), ("env_backend", ("auto", "gymnasium"))):
        added = added_values(option)
        assert typing.get_args(field_types()[option]) == (*own, *added)
        assert field_texts(TrainConfig)[option].endswith(" ".join(added.values()))
    assert set(added_values("objective")) == {"distill", "clone"}
    assert added_values("core") == {}


def test_an_option_of_another_command_with_the_same_name_has_no_such_text() -> None:
    assert "clone" not in field_texts(SearchOptions)["objective"]
