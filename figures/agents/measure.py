"""Measure how several agents learn, with one shared policy.

    python -m figures.agents.measure teams --seeds 1 2 3
    python -m figures.agents.measure games
    python -m figures.agents.measure peer "VENV/bin/python figures/agents/ppo_of_sb3.py"
    python -m figures.agents.measure speed "VENV/bin/python figures/agents/ppo_of_sb3.py"

teams: simple_spread with a critic that sees what the agent sees (IPPO), in the network of the actor or in its own, and
with one that also sees the state of the environment (MAPPO). The task of examples/agents_with_memory.py with and
without memory. Appends to teams.csv.

games: board games by self-play, then games against other players from both seats. Appends to games.csv.

peer: simple_spread with PPO of SB3 and SuperSuit's vectorization. The command gets a seed and a number of environment
steps, and prints JSON with columns of teams.csv, to which the row is appended.

speed: short runs of IPPO with two workers and of the other trainer, interleaved. Writes speed.csv.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import RUNS, add_run, commits_of, evaluate_run, save_curve, train
from figures.common.paths import ROOT
from figures.common.tables import append_rows, has_row, read_rows, rows_with, write_rows

FOLDER, EXAMPLES = Path(__file__).parent, ROOT / "examples"
TABLE = FOLDER / "teams.csv"
STEPS, SHORT = 500_000, 60_000
SPREAD: list[object] = [EXAMPLES / "simple_spread.py", "--total-steps", STEPS]
IPPO = [*SPREAD, "--no-critic-state", "--separate-critic", "none"]
TEAMS: dict[tuple[str, str], list[object]] = {
    ("simple_spread", "IPPO"): IPPO,
    ("simple_spread", "IPPO, separate critic"): [*SPREAD, "--no-critic-state"],
    ("simple_spread", "MAPPO"): SPREAD,
    ("message", "GRU"): [EXAMPLES / "agents_with_memory.py"],
    ("message", "no memory"): [EXAMPLES / "agents_with_memory.py", "--core", "none"],
}
GAMES: dict[str, tuple[list[object], tuple[str, ...]]] = {
    "tic-tac-toe": (["-m", "shmppo.train", "--preset", "tictactoe_v3"], ("random", "board_game_players:perfect")),
    "Connect Four": (["-m", "shmppo.train", "--preset", "connect_four_v3"], ("random", "board_game_players:searching")),
}
"""Game -> (program that trains and its flags, opponents)."""
GAMES_PER_SEAT = 500
GAME_COLUMNS = ("iteration", "env_steps", "wall_seconds", "elo", "info/win", "info/draw", "info/loss", "entropy")


def measure_teams(options: argparse.Namespace) -> None:
    for seed in options.seeds:
        for (task, case), program in TEAMS.items():
            add_run(TABLE, {"task": task, "case": case}, seed, program, episodes=100)


def measure_games(options: argparse.Namespace) -> None:
    """Train each game once, with the first seed, and append a row for each opponent and seat."""
    table, seed = FOLDER / "games.csv", options.seeds[0]
    for game, (program, opponents) in GAMES.items():
        run_dir = RUNS / "games" / f"{game}-s{seed}"
        if len(rows_with(table, {"game": game})) == 2 * len(opponents):
            continue
        summary = train(program, seed, run_dir)
        save_curve(run_dir, FOLDER / "curves" / f"{run_dir.name}.csv", GAME_COLUMNS)
        config = json.loads((run_dir / "config.json").read_text())["config"]
        for opponent in opponents:
            for seat in config["agents"]:
                key = {"game": game, "opponent": opponent.partition(":")[2] or opponent, "seat": seat, "seed": seed}
                if has_row(table, key):
                    continue
                result = evaluate_run(run_dir, GAMES_PER_SEAT, "--opponent", opponent, "--seat", seat)
                row = {name: round(GAMES_PER_SEAT * result[f"info/{name}_mean"]) for name in ("win", "draw", "loss")}
                row |= {name: summary[name] for name in ("env_steps", "wall_seconds", "weights_sha256")}
                append_rows(table, [{**key, **row, "commit": commits_of(run_dir)}])
                print(key, row, flush=True)


def run_peer(command: str, seed: int, steps: int) -> dict[str, Any]:
    """Run another trainer, and return what it prints."""
    output = subprocess.run(f"{command} {seed} {steps}", shell=True, check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def measure_peer(options: argparse.Namespace) -> None:
    for seed in options.seeds:
        key = {"task": "simple_spread", "case": "SB3", "seed": seed}
        if not has_row(TABLE, key):
            columns = read_rows(TABLE)[0]
            append_rows(TABLE, [dict.fromkeys(columns, "") | key | run_peer(options.command, seed, STEPS)])


def measure_speed(options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as directory:
            flags = [*IPPO, "--total-steps", SHORT, "--workers", 2, "--quiet", "--run-dir", f"{directory}/run"]
            subprocess.run([sys.executable, *map(str, flags)], cwd=ROOT, check=True)
            ours = json.loads((Path(directory) / "run" / "summary.json").read_text())
        peer = run_peer(options.command, seed, SHORT)
        theirs = peer["env_steps"] / peer["wall_seconds"]
        rate = ours["env_steps"] / ours["wall_seconds"]
        rows.append({"shmppo": round(rate), "SB3": round(theirs), "ratio": round(rate / theirs, 2)})
        print(rows[-1], flush=True)
    write_rows(FOLDER / "speed.csv", rows, f"Environment steps per second over {SHORT} steps, interleaved.")


PARTS = {"teams": measure_teams, "games": measure_games, "peer": measure_peer, "speed": measure_speed}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("command", nargs="?", help="of the other trainer")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
