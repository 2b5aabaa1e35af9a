"""How many actors are worth it: a model of the fleet from measured costs, checked against real runs.

`python benchmarks/scaling.py calibrate --save benchmarks/results/scaling.json` measures what the model needs, with
IMPALA's preset on CartPole and Pong (`--device cuda`: updates on a GPU); `check` trains with real actors and prints
predicted beside measured rates; `predict --plot docs/images/scaling.png` prints the table of benchmarks/README.md.
Rows are markdown. The model is in scaling_model.py; close everything else before calibrating or checking.
"""

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from scaling_model import Cluster, Costs, Outcome, simulate

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks" / "results" / "scaling.json"
CARTPOLE, PONG = "CartPole-v1", "PongNoFrameskip-v4"
SIZES = (1, 2, 4, 8, 16, 64, 256, 1000, 10_000)
CHECKED = {CARTPOLE: (4, 16), PONG: (2, 16)}
"""environments of an actor and rows of a rollout in real runs"""
NODES = {"num_envs": 4, "steps": 20, "cores": 16, "actors_per_node": 16}
NETWORK = {"network": 25e9 / 8, "latency": 1e-4, "publish_node": 5e-5}
H200_ESTIMATED = {"update": 1e-3, "update_row": 1e-5}
"""IMPALA's two Nature nets on an H200, copies to it included: a guess, until `calibrate --device cuda` is stored"""
H200_DQN = {"update": 1 / 1647.5, "update_row": 0.0}
"""measured for batches of 32: results/device_h200.json"""


def settings(stored: dict[str, Any]) -> dict[str, tuple[Costs, Cluster]]:
    """What is predicted: a name, what things cost there, and how they are laid out."""
    cartpole, pong = (costs_of(stored, f"{env}, cpu") for env in (CARTPOLE, PONG))
    measured = f"{PONG}, cuda" in stored["costs"]
    on_gpu = costs_of(stored, f"{PONG}, cuda") if measured else replace(pong, **H200_ESTIMATED)
    remote = Cluster(**NODES, **NETWORK)
    return {
        "CartPole, IMPALA, one machine of 16 cores": (cartpole, Cluster(num_envs=4, steps=16, cores=16)),
        "Pong, IMPALA, 16-core nodes, one H200, 25 Gbit/s": (on_gpu, remote),
        "the same, 8 learners with an H200 each, trajectories through the first": (
            scattered(on_gpu, remote, 8),
            remote,
        ),
        "the same, if each of the 8 had actors of its own": (on_gpu, replace(remote, learners=8)),
        "Pong, DQN, 16-core nodes, one H200, an update of 32 rows for 4 steps": (
            replace(on_gpu, **H200_DQN),
            replace(remote, ratio=0.25, batch_size=32),
        ),
    }


def scattered(costs: Costs, cluster: Cluster, learners: int) -> Costs:
    """An update whose rows the first learner sends to the others, and whose gradients all of them average."""
    share = (learners - 1) / learners
    reducing = 2 * share * costs.gradient_bytes / cluster.network + 2 * (learners - 1) * cluster.latency
    return replace(
        costs,
        update=costs.update + reducing,
        update_row=costs.update_row / learners + share * costs.row_bytes / cluster.network,
    )


def costs_of(stored: dict[str, Any], name: str) -> Costs:
    found = stored["costs"].get(name)
    if found is None:
        raise SystemExit(
            f"there are no costs of {name!r} yet, only of {sorted(stored['costs'])}; calibrate first"
        )
    return Costs(**{field.name: found[field.name] for field in fields(Costs)})


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# calibrate


def calibrate(args: argparse.Namespace) -> None:
    from results import commit, machine
    from scaling_costs import calibrate as measure

    stored = read(args.save) if args.save.is_file() else {"costs": {}}
    for env in available(args.env):
        found = asdict(measure(env, args.device, args.seconds))
        about = {"machine": machine(), "date": date.today().isoformat(), "commit": args.commit or commit()}
        stored["costs"][f"{env}, {args.device}"] = {**about, **found}
        args.save.write_text(json.dumps(stored, indent=1) + "\n")
    print(costs_table(stored))


def costs_table(stored: dict[str, Any]) -> str:
    """Costs in rows, calibrations in columns: seconds as microseconds, but for those of a byte."""
    columns = stored["costs"]
    rows = [
        (f"`{field.name}`", *(amount(field.name, found[field.name]) for found in columns.values()))
        for field in fields(Costs)
    ]
    where = (f"{found['machine']}, {found['date']}, `{found['commit']}`" for found in columns.values())
    return table(("cost", *columns), [*rows, ("measured on", *where)])


def amount(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value:,.0f} B"
    if name.endswith("_byte"):
        return f"{value * 1e9:.2f} ns"
    return f"{value * 1e6:,.1f} µs"


def available(envs: list[str]) -> list[str]:
    """Without Atari's emulator, what is left."""
    return [env for env in envs if env != PONG or importlib.util.find_spec("ale_py")]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


# check


def check(args: argparse.Namespace) -> None:
    from results import commit, machine

    stored, rows = read(args.costs), []
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    for env in available(args.env):
        num_envs, steps = CHECKED[env]
        costs = costs_of(stored, f"{env}, cpu")
        for actors in args.actors:
            found = simulate(costs, Cluster(num_envs=num_envs, steps=steps, cores=cores), actors)
            predicted = (found.steps_per_second, found.steps_per_second / found.cores, found.lag)
            runs = [run(env, actors, num_envs, steps, args.seconds) for _ in range(args.rounds)]
            measured = [statistics.median(column) for column in zip(*runs)]
            rows.append((env, str(actors), *compared(predicted, measured)))
            print(*rows[-1], flush=True)
    print(f"\n{table(CHECK, rows)}\n")
    where = f"{machine()}, load {load:.1f} before, {date.today().isoformat()}, `{args.commit or commit()}`"
    stored["check"] = {
        "about": f"{where}; medians of {args.rounds} runs of {args.seconds:g} s",
        "rows": [dict(zip(CHECK, row)) for row in rows],
    }
    print(stored["check"]["about"])
    args.costs.write_text(json.dumps(stored, indent=1) + "\n")


CHECK = (
    *("environment", "actors", "rows/s predicted", "measured", "ratio"),
    *("rows per core-second predicted", "measured there", "ratio there", "lag predicted", "measured lag"),
)


def compared(predicted: Iterable[float], measured: Iterable[float]) -> list[str]:
    """Cells of the rate, the rate for each second that a core was at work, and the lag."""
    (rate, each, lag), (real, real_each, real_lag) = predicted, measured
    cells = [f"{rate:,.0f}", f"{real:,.0f}", f"{rate / real:.2f}"]
    cells += [f"{each:,.0f}", f"{real_each:,.0f}", f"{each / real_each:.2f}"]
    return [*cells, f"{lag:.1f}", f"{real_lag:.1f}"]


def run(env: str, actors: int, num_envs: int, steps: int, seconds: float) -> tuple[float, float, float]:
    """Rows a second, rows a core-second and mean lag of a real run, once its actors have started."""
    import whorl

    seen: list[tuple[float, float, int]] = []
    lags: list[float] = []

    class Clock(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if "actors/lag" not in metrics or metrics["actors/alive"] < actors:
                return
            lags.append(metrics["actors/lag"])
            if len(lags) > 1:
                seen.append((time.perf_counter(), core_seconds(), trainer.iteration))
                if seen[-1][0] - seen[0][0] > seconds:
                    trainer.stop("measured")

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"eval": False, "save_model": False, "tensorboard": False, "quiet": True, "log_freq": 10}
        limits = {"total_timesteps": 0, "max_iterations": 10**9, "device": "cpu", "runs": folder}
        size = {"actors": actors, "num_envs": actors * num_envs, "num_steps": steps}
        whorl.load(env, "impala", {**quiet, **limits, **size}, callbacks=[Clock()]).train()
    wall, used, epochs = (last - first for first, last in zip(seen[0], seen[-1]))
    rows = epochs * actors * num_envs * steps
    return rows / wall, rows / used, statistics.fmean(lags[1:])


def core_seconds() -> float:
    """Of this process and of those that it started; Linux alone tells."""
    ticks, found = 0, [str(os.getpid())]
    while found:
        folder = Path("/proc") / found.pop()
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
        found += [
            child for task in (folder / "task").iterdir() for child in (task / "children").read_text().split()
        ]
    return ticks / os.sysconf("SC_CLK_TCK")


# predict


def predict(args: argparse.Namespace) -> None:
    arranged = settings(read(args.costs))
    found = {
        name: {actors: simulate(costs, cluster, actors) for actors in args.actors}
        for name, (costs, cluster) in arranged.items()
    }
    print(table(("actors", *found), (overview(actors, found.values()) for actors in args.actors)))
    for name, outcomes in found.items():
        print(f"\n{name}\n")
        cluster = arranged[name][1]
        print(table(HEADER, (row(actors, cluster, outcome) for actors, outcome in outcomes.items())))
    if args.plot:
        draw(arranged, args.plot)


def overview(actors: int, found: Iterable[dict[int, Outcome]]) -> tuple[str, ...]:
    """Rate and bottleneck in every setting."""
    cells = (f"{rounded(each[actors].steps_per_second)} · {each[actors].bottleneck}" for each in found)
    return f"{actors:,}", *cells


def rounded(rate: float) -> str:
    """Three digits: more are not meant."""
    return f"{float(f'{rate:.3g}'):,.0f}"


HEADER = (
    *("actors", "env steps/s", "first bottleneck", "actors wait", "learner", "link in", "weights out", "lag"),
    "rows an update",
)


def row(actors: int, cluster: Cluster, found: Outcome) -> tuple[str, ...]:
    rate = rounded(found.steps_per_second)
    shares = (found.waiting, *(found.busy[name] for name in ("learner", "link in", "weights out")))
    shown = (f"{actors:,}", rate, found.bottleneck, *(f"{share:.0%}" for share in shares), f"{found.lag:.1f}")
    rows = cluster.batch_size if cluster.ratio else actors * cluster.num_envs * cluster.steps
    return *shown, f"{rows:,}"


def draw(arranged: dict[str, tuple[Costs, Cluster]], output: Path) -> None:
    """Throughput over actors; a name on each stretch of a curve says what holds it down there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from whorl.log.console import compact
    from whorl.log.plot import COLOURS

    sizes = [*(2**exponent for exponent in range(14)), SIZES[-1]]
    figure = Figure(figsize=(9.6, 6.0), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for colour, (name, (costs, cluster)) in zip(COLOURS, arranged.items()):
        found = [simulate(costs, cluster, actors) for actors in sizes]
        rates = [outcome.steps_per_second for outcome in found]
        panel.plot(sizes, rates, color=colour, linewidth=2.0, label=name)
        for first, last in stretches([outcome.bottleneck for outcome in found]):
            at, rises = (first + last) // 2, rates[last] > 2 * rates[first]
            panel.plot(sizes[first], rates[first], "o", color=colour, markersize=5, markerfacecolor="white")
            panel.annotate(
                found[at].bottleneck,
                (sizes[at], rates[at]),
                xytext=(-6, 3) if rises else (0, 7),
                textcoords="offset points",
                ha="right" if rises else "center",
                color=colour,
                fontsize=8,
            )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("actors")
    panel.set_ylabel("env steps per second, predicted")
    panel.set_ylim(top=panel.get_ylim()[1] * 4)  # room for the legend
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        axis.set_minor_formatter(NullFormatter())
    panel.grid(True, color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(which="both", color="#999999", labelcolor="#333333", labelsize=9)
    panel.legend(loc="upper left", fontsize=8, frameon=True, framealpha=0.9, edgecolor="none")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def stretches(names: list[str]) -> list[tuple[int, int]]:
    """First and last index of each run of equal names."""
    starts = [index for index, name in enumerate(names) if not index or name != names[index - 1]]
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], len(names)])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    found = commands.add_parser("calibrate", help="measure what the model needs")
    found.add_argument("--env", nargs="+", default=[CARTPOLE, PONG])
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where updates run")
    found.add_argument("--seconds", type=float, default=2.0, help="of each of some thirty measurements")
    found.add_argument("--save", type=Path, default=STORED)
    found.add_argument("--commit", default="", help="where there is no git")
    found.set_defaults(run=calibrate)
    found = commands.add_parser("check", help="train with real actors beside the prediction")
    found.add_argument("--env", nargs="+", choices=tuple(CHECKED), default=[CARTPOLE, PONG])
    found.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    found.add_argument("--seconds", type=float, default=10.0)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--costs", type=Path, default=STORED)
    found.add_argument("--commit", default="", help="where there is no git")
    found.set_defaults(run=check)
    found = commands.add_parser("predict", help="the tables, from what is stored")
    found.add_argument("--actors", type=int, nargs="+", default=list(SIZES))
    found.add_argument("--costs", type=Path, default=STORED)
    found.add_argument("--plot", type=Path, help="draw a picture too")
    found.set_defaults(run=predict)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
