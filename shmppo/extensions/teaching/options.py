"""The flags of teachers and demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmppo.config.checks import require
from shmppo.config.extensions import ExtensionOptions
from shmppo.config.option import AT_LEAST_1, COEFFICIENT, option

MINARI = "minari:"
"""What a value of --demonstrations begins with if the rest is the id of a Minari data set."""
VALUES = {
    "objective": {
        "distill": "distill: the actor learns only from --teacher.",
        "clone": "clone: behavior cloning, which maximizes the mean log-probability of the actions in "
        "--demonstrations. In both, the critic learns from rewards.",
    }
}


@dataclass(frozen=True)
class TeachingOptions(ExtensionOptions):
    """Learning from the policy of another run, or from recorded episodes."""

    teacher: str | None = option(None, common=True, one_column=True, path=True, copied=True)
    """Directory of a run or an exported policy, or a checkpoint file, whose policy the new run imitates: its loss
    contains KL(teacher ‖ policy) at the steps of its rollouts (kickstarting, arXiv 1803.03835). None: no teacher."""
    teacher_coef: float = option(1.0, COEFFICIENT, branchable=True)
    """Weight of KL(teacher ‖ policy)."""
    teacher_steps: int | None = option(None, AT_LEAST_1, branchable=True)
    """Environment steps over which --teacher-coef falls linearly to 0. None: it stays constant."""
    demonstrations: str | None = option(
        None, resumable=True, one_column=True, gymnasium=True, path=True, no_path=(MINARI,),
        unfit_for_search="gives each trial the same returns",
    )  # fmt: skip
    """Recorded episodes for --objective clone, which are played back instead of stepping the environments: a file of
    `evaluate --record`, or minari:ID for a Minari data set on this machine (extra `minari`). Their returns are not
    those of the policy, so the return of --best-by is that of evaluations. None: no demonstrations."""

    def check(self) -> None:
        objective = getattr(self, "objective", None)
        require(
            (objective == "clone") == (self.demonstrations is not None),
            "--objective clone and --demonstrations need each other; add the other one, or leave both out",
        )
        if objective == "distill":
            require(self.teacher is not None, "--objective distill needs a teacher; add --teacher RUN_DIR")
            require(
                self.teacher_steps is None, "--teacher-steps would end the loss of --objective distill; leave it out"
            )

    def recording(self) -> str | None:
        return None if self.demonstrations is None else "demonstrations"

    @staticmethod
    def continued(fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("objective") != "clone":
            return fields
        return {name: fields[name] for name in fields if name not in ("objective", "demonstrations")}


OPTIONS = TeachingOptions
