"""Speed beside other libraries: every case in one run, contestants alternating, same settings, median of the rounds.

    python benchmarks/peers.py setup
    python benchmarks/peers.py run --output benchmarks/results/peers.jsonl
    python benchmarks/peers.py report benchmarks/results/peers*.jsonl --write docs/peers.md

`setup` gives each library of `contestants/*.txt` an environment of its own in `build/peers`, on top of the packages of
this interpreter. `run` measures each contestant in a process of its own, with the same cores and torch threads; every
second round goes through them in reverse. Where a library has several ways to do the same (vector environments in this
process or in others), all are measured and the fastest counts. Steps are environment steps; the first rollouts, or the
steps before learning has long begun, are warm-up. A run that was stopped is continued by the same command. A library
that is not installed, lacks the algorithm or fails is named in the report with the reason.
"""

import argparse
import compileall
import importlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from contestants import Work
from rounds import NoAnswerError, answer

HERE = Path(__file__).resolve().parent
Record = dict[str, Any]
OURS = "whorl"
NAMES = {
    "whorl": "whorl",
    "sb3": "SB3",
    "cleanrl": "CleanRL-style",
    "leanrl": "LeanRL-style",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
    "skrl": "skrl",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
    "pufferlib": "PufferLib",
}


@dataclass(frozen=True)
class Case:
    title: str
    unit: str
    work: Work
    quick: dict[str, Any] = field(default_factory=dict)
    """smaller settings of a smoke run"""
    limit: float = 300.0
    """seconds of a measurement"""

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return self.unit in ("s", "MB")


ROLLOUT = {"num_steps": 32, "n_epochs": 1, "steps": 768}
LEARNING = {"learning_starts": 100, "steps": 300}
BRIEF = {"seconds": 0.1, "rows": 2000}
HALF = {"env": "HalfCheetah-v5"}
PONG: dict[str, Any] = {"env": "PongNoFrameskip-v4"}
OFF: dict[str, Any] = {"hidden": (256, 256), "num_envs": 1, "steps": 4000}
BATCHES: dict[str, Any] = {"rows": 1_000_000, "num_envs": 1}
RATE, BATCH, UPDATE = "env-steps/s", "batches/s", "updates/s"
CASES = {
    "ppo_cartpole": Case("PPO CartPole-v1, minibatch 256", RATE, Work("ppo"), ROLLOUT),
    "ppo_cartpole_64": Case("PPO CartPole-v1, minibatch 64", RATE, Work("ppo", batch_size=64), ROLLOUT),
    "ppo_halfcheetah": Case("PPO HalfCheetah-v5, minibatch 256", RATE, Work("ppo", **HALF), ROLLOUT),
    "ppo_halfcheetah_64": Case(
        "PPO HalfCheetah-v5, minibatch 64", RATE, Work("ppo", batch_size=64, **HALF), ROLLOUT
    ),
    "ppo_pong": Case(
        "PPO Pong from pixels, 8 x 128 steps, 4 epochs",
        RATE,
        Work("ppo", num_steps=128, n_epochs=4, steps=4096, **PONG),
        {"num_steps": 16, "n_epochs": 1, "steps": 384, "batch_size": 64},
    ),
    "recurrent_ppo_cartpole": Case(
        "recurrent PPO CartPole-v1, LSTM 64", RATE, Work("recurrent_ppo", steps=16_384), ROLLOUT
    ),
    "sac_pendulum": Case("SAC Pendulum-v1", RATE, Work("sac", "Pendulum-v1", **OFF), LEARNING),
    "sac_halfcheetah": Case("SAC HalfCheetah-v5", RATE, Work("sac", **HALF, **OFF), LEARNING),
    "td3_pendulum": Case("TD3 Pendulum-v1", RATE, Work("td3", "Pendulum-v1", **OFF), LEARNING),
    "td3_halfcheetah": Case("TD3 HalfCheetah-v5", RATE, Work("td3", **HALF, **OFF), LEARNING),
    "sac_updates": Case("SAC updates", UPDATE, Work("updates", algorithm="sac", hidden=(256, 256)), BRIEF),
    "td3_updates": Case("TD3 updates", UPDATE, Work("updates", algorithm="td3", hidden=(256, 256)), BRIEF),
    "dqn_cartpole": Case(
        "DQN CartPole-v1", RATE, Work("dqn", batch_size=32, steps=20_000), {**LEARNING, "steps": 2000}
    ),
    "dqn_pong": Case(
        "DQN Pong from pixels",
        RATE,
        Work("dqn", batch_size=32, steps=4000, **PONG),
        {**LEARNING, "steps": 600},
    ),
    "replay": Case("replay, 10⁶ rows", BATCH, Work("replay", **BATCHES), BRIEF),
    "prioritized": Case("prioritized replay, 10⁶ rows", BATCH, Work("prioritized", **BATCHES), BRIEF),
    "stepping_cartpole": Case("vector stepping CartPole-v1", RATE, Work("stepping"), BRIEF),
    "stepping_halfcheetah": Case("vector stepping HalfCheetah-v5", RATE, Work("stepping", **HALF), BRIEF),
    "import": Case("import what PPO needs", "s", Work("import")),
    "first_step": Case(
        "from start to first environment step, PPO", "s", Work("first_step", steps=4096), ROLLOUT
    ),
    "memory": Case("memory of PPO CartPole-v1", "MB", Work("memory", steps=4096), ROLLOUT),
}
TRAINS = ("first_step", "memory")
"""kinds that train PPO, with the contestant's first way"""


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = {"nargs": "+", "default": list(NAMES), "choices": list(NAMES), "metavar": "NAME"}
    venvs = {"type": Path, "default": HERE.parent / "build" / "peers", "help": "folder of the environments"}
    making = commands.add_parser("setup", help="install the contestants")
    making.add_argument("--contestants", **names)
    making.add_argument("--venvs", **venvs)
    making.add_argument("--limit", type=float, default=600, help="seconds for one of them")
    running = commands.add_parser("run", help="measure what is not in the output yet")
    running.add_argument("--output", type=Path, default=HERE / "results" / "peers.jsonl")
    running.add_argument("--contestants", **names)
    running.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    running.add_argument("--venvs", **venvs)
    running.add_argument("--rounds", type=int, default=3)
    running.add_argument("--threads", type=int, default=1, help="torch threads of every contestant")
    running.add_argument("--cores", type=int, default=2, help="cores that contestants may use")
    running.add_argument("--seconds", type=float, default=float("inf"), help="time of the whole call")
    running.add_argument("--quick", action="store_true", help="a smoke run: settings too small to measure")
    reporting = commands.add_parser("report", help="the tables of what is in the output")
    reporting.add_argument(
        "output", type=Path, nargs="*", default=sorted((HERE / "results").glob("peers*.jsonl"))
    )
    reporting.add_argument("--write", type=Path, help="write a page with the tables there, too")
    contestant = commands.add_parser("contestant", help="one measurement (used by run)")
    contestant.add_argument("name", choices=list(NAMES))
    contestant.add_argument("work", type=json.loads)
    contestant.add_argument("--began", type=float, default=0.0)
    args = parser.parse_args()
    if args.command == "setup":
        setup(args.contestants, args.venvs, args.limit)
    elif args.command == "run":
        run(args)
    elif args.command == "contestant":
        work = Work(**{**args.work, "hidden": tuple(args.work["hidden"])})
        print(json.dumps(measured(args.name, work, args.began or time.time())), flush=True)
    else:
        from jobs import read

        records = [{**record, "call": call} for call, path in enumerate(args.output) for record in read(path)]
        print(tables(records))
        if args.write:
            args.write.write_text(page(records), "utf-8")


def setup(names: Iterable[str], folder: Path, limit: float) -> None:
    """An environment for each contestant that has a list of packages, and why where it could not be made."""
    for name in names:
        wanted = HERE / "contestants" / f"{name}.txt"
        if not wanted.exists():
            continue
        place, reason = folder / name, folder / f"{name}.reason"
        venv.create(place, symlinks=True)
        python = interpreter(name, folder)
        inside = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
        Path(inside, "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "-r", str(wanted), "-c", str(HERE.parent / "constraints.txt")]
        with subprocess.Popen(install, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                errors = process.communicate(timeout=limit)[1]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what builds the packages
                reason.write_text(f"its installation took more than {limit:.0f} s\n")
                errors = None
        if process.returncode == 0:
            reason.unlink(missing_ok=True)
        elif errors is not None:
            said = re.findall(r"^\s*((?:[\w.]+Error|ERROR): .+)", errors, re.M) or ["pip failed"]
            reason.write_text(f"does not install: {said[-1]}\n")
        print(f"{name}: {reason.read_text().strip() if reason.exists() else 'installed'}", flush=True)


def interpreter(name: str, folder: Path) -> str:
    """The contestant's own Python, or this one where it has none."""
    own = folder / name / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def ways(name: str, kind: str) -> Sequence[str]:
    module = importlib.import_module(f"contestants.{name}")
    if kind in TRAINS:
        return module.WAYS.get("ppo", ("",))[:1]
    return module.WAYS.get(kind, ("",))


def absence(name: str, work: Work, folder: Path) -> str:
    """Why a contestant is not measured; empty if it can be."""
    reason = folder / f"{name}.reason"
    if reason.exists():
        return reason.read_text().strip()
    module = importlib.import_module(f"contestants.{name}")
    function = "load" if work.kind == "import" else "ppo" if work.kind in TRAINS else work.kind
    if not hasattr(module, function):
        return module.ABSENT.get(work.kind) or module.ABSENT[""]
    if work.pixels and not getattr(module, "PIXELS", False):
        return "is measured on vectors only"
    return ""


def run(args: argparse.Namespace) -> None:
    from jobs import origin, read

    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[: args.cores])
    # pip does this for the others, whatever PYTHONDONTWRITEBYTECODE says.
    compileall.compile_dir(HERE.parent / "whorl", quiet=2)
    began, where = (
        time.monotonic(),
        {**origin(), "threads": args.threads, "cores": min(args.cores, len(usable))},
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    finished = {key(record) for record in read(args.output)}
    failed = {key(record)[:3] for record in read(args.output) if "reason" in record}
    for found in measurements(args.cases, args.contestants, args.rounds):
        case = CASES[found["case"]]
        if key(found) in finished or key(found)[:3] in failed:
            continue
        if time.monotonic() - began > args.seconds:
            print("the time is over; the same command goes on", flush=True)
            return
        work = replace(
            case.work, way=found["way"], threads=args.threads, **(case.quick if args.quick else {})
        )
        try:
            if reason := absence(found["contestant"], work, args.venvs):
                raise NoAnswerError(reason)
            found |= once(found["contestant"], work, case.limit, args.venvs)
        except NoAnswerError as error:
            found["reason"] = str(error)
            failed.add(key(found)[:3])
        with args.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**found, **where, "work": asdict(work)}) + "\n")
        label = f"{case.title}: {NAMES[found['contestant']]} {found['way']}".strip()
        print(f"{label}: {found.get('reason') or number(found['value']) + ' ' + case.unit}", flush=True)


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["case"], record["contestant"], record["way"], record["round"]


def measurements(cases: Iterable[str], contestants: Sequence[str], rounds: int) -> Iterator[Record]:
    """What is measured, in order: all contestants of a case in turns, every second round in reverse."""
    for case in cases:
        entries = [(name, way) for name in contestants for way in ways(name, CASES[case].work.kind)]
        for number in range(rounds):
            for name, way in entries[:: -1 if number % 2 else 1]:
                yield {"case": case, "contestant": name, "way": way, "round": number}


def once(name: str, work: Work, limit: float, folder: Path) -> Record:
    """One measurement in a process of its own."""
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    pinned = dict.fromkeys(variables, str(work.threads))
    own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HERE.parent), "PYTHONWARNINGS": "ignore"}
    command = [interpreter(name, folder), str(Path(__file__)), "contestant", name, json.dumps(asdict(work))]
    most = [0.0]

    def watch(process: int) -> None:
        most[0] = max(most[0], memory_of(process))

    found: Record = answer(
        [*command, "--began", str(time.time())],
        {**os.environ, **pinned, **own},
        limit,
        watch if work.kind == "memory" else None,
    )
    return {**found, "value": most[0]} if work.kind == "memory" else found


def measured(name: str, work: Work, began: float) -> Record:
    """The contestant's side."""
    module = importlib.import_module(f"contestants.{name}")
    value = 0.0
    if work.kind == "import":
        module.load()
        value = time.time() - began
    else:
        import torch

        torch.set_num_threads(work.threads)
        if work.kind == "first_step":
            first = first_step()
            module.ppo(work)
            if not first:
                raise RuntimeError("its environments are stepped in other processes")
            value = first[0] - began
        elif work.kind == "memory":
            module.ppo(work)
        else:
            value = getattr(module, work.kind)(work)
    return {"value": value, "versions": versions((*module.PACKAGES, "torch", "gymnasium", "numpy"))}


def first_step() -> list[float]:
    """Gets the time of the first step of a CartPole, or of a batch of them, in this process."""
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

    found: list[float] = []

    def timed(kind: Any) -> None:
        original = kind.step

        def step(self: Any, action: Any) -> Any:
            found.append(time.time())
            kind.step = original
            return original(self, action)

        kind.step = step

    timed(CartPoleEnv)
    timed(CartPoleVectorEnv)
    return found


def memory_of(process: int) -> float:
    """Megabytes of a process and its descendants; pages that several share count once."""
    total, left = 0.0, [process]
    while left:
        at = left.pop()
        with suppress(OSError):
            for line in Path(f"/proc/{at}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
            for task in Path(f"/proc/{at}/task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
    return total


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@dataclass(frozen=True)
class Result:
    """A contestant's best way in a case."""

    value: float
    way: str
    ours: float | None = None
    """our figure in the same call"""


def best(records: Iterable[Record]) -> dict[str, dict[str, Result | str]]:
    """By case and contestant: the median of the fastest way in the last call that has one, or why there is none."""
    calls: dict[int, list[Record]] = {}
    for record in records:
        calls.setdefault(record.get("call", 0), []).append(record)
    found: dict[str, dict[str, Result | str]] = {}
    for _, each in sorted(calls.items()):
        for case, results in best_of_call(each).items():
            found.setdefault(case, {}).update(results)
    return {
        case: {name: found[case][name] for name in NAMES if name in found[case]}
        for case in CASES
        if case in found
    }


def best_of_call(records: Iterable[Record]) -> dict[str, dict[str, Result | str]]:
    """`best` of one call."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for record in records:
        pair = record["case"], record["contestant"]
        if "reason" in record:
            reasons[pair] = record["reason"]
        else:
            values.setdefault(pair, {}).setdefault(record["way"], []).append(record["value"])
    found: dict[str, dict[str, Result | str]] = {}
    for case, definition in CASES.items():
        for name in NAMES:
            if (case, name) in values:
                results = [Result(statistics.median(each), way) for way, each in values[case, name].items()]
                chosen = min if definition.lower else max
                found.setdefault(case, {})[name] = chosen(results, key=lambda result: result.value)
            elif (case, name) in reasons:
                found.setdefault(case, {})[name] = reasons[case, name]
        ours = found.get(case, {}).get(OURS)
        if isinstance(ours, Result):
            results_of_all = found[case].items()
            found[case] = {
                name: replace(result, ours=ours.value) if isinstance(result, Result) else result
                for name, result in results_of_all
            }
    return found


def ratio(case: str, theirs: Result | str | None) -> float | None:
    """How many times as fast (or small) as the other we were in the same call; None without both."""
    if not isinstance(theirs, Result) or theirs.ours is None:
        return None
    return theirs.value / theirs.ours if CASES[case].lower else theirs.ours / theirs.value


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summary(records: Sequence[Record]) -> str:
    """A row for each case: our figure, and how many times as good as each peer's it is."""
    found = best(records)
    peers = [
        name
        for name in NAMES
        if name != OURS and any(isinstance(results.get(name), Result) for results in found.values())
    ]
    rows = []
    for case, results in found.items():
        ours = results.get(OURS)
        figure = f"{number(ours.value)} {CASES[case].unit}" if isinstance(ours, Result) else "–"
        ratios = [ratio(case, results.get(name)) for name in peers]
        cells = [
            "–" if each is None else f"{each:.2f}×" if round(each, 2) >= 1 else f"**{each:.2f}×**"
            for each in ratios
        ]
        rows.append([CASES[case].title, figure, *cells])
    return markdown(("case", "whorl", *(NAMES[name] for name in peers)), rows)


def details(records: Sequence[Record]) -> str:
    """Every figure with the way that gave it."""
    rows = []
    for case, results in best(records).items():
        for name, result in results.items():
            if isinstance(result, Result):
                each = ratio(case, result)
                shown = "" if name == OURS or each is None else f"{each:.2f}×"
                figure = f"{number(result.value)} {CASES[case].unit}"
                rows.append([CASES[case].title, NAMES[name], figure, result.way, shown])
    return markdown(("case", "contestant", "median", "way", "whorl is"), rows)


def missing(records: Sequence[Record]) -> str:
    """Who is absent where, and why."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for case, results in best(records).items():
        for name, result in results.items():
            if isinstance(result, str):
                grouped.setdefault((name, result), []).append(CASES[case].title)
    every = {name: sum(name in results for results in best(records).values()) for name in NAMES}
    rows = [
        [NAMES[name], "all" if len(titles) == every[name] else "; ".join(titles), reason.replace("|", "/")]
        for (name, reason), titles in grouped.items()
    ]
    return markdown(("contestant", "not in", "reason"), rows) if rows else "None is missing."


def behind(records: Sequence[Record]) -> str:
    """Where a peer is ahead of us, in a sentence."""
    found = []
    for case, results in best(records).items():
        for name, result in results.items():
            each = ratio(case, result)
            if name != OURS and each is not None and round(each, 2) < 1:
                found.append(f"{NAMES[name]} in {CASES[case].title} ({each:.2f}×)")
    return f"Ahead of whorl: {'; '.join(found)}." if found else "No peer is ahead of whorl in these cases."


def tables(records: Sequence[Record]) -> str:
    return "\n\n".join((summary(records), behind(records), details(records), missing(records)))


def page(records: Sequence[Record]) -> str:
    """The tables with how they were measured."""
    packages: dict[str, str] = {}
    for record in records:
        packages |= {
            name: known for name, known in record.get("versions", {}).items() if name not in packages
        }
    named = ", ".join(f"{name} {known}" for name, known in sorted(packages.items()))
    machines = sorted({f"{record['machine']}, {record['cores']} used" for record in records})
    commits = sorted({record["commit"] for record in records if record["commit"]})
    rounds = 1 + max(record["round"] for record in records)
    threads = sorted({record["threads"] for record in records})
    return f"""# Speed compared with other libraries

How many times as fast (or as small) whorl is with the same settings; below one, in bold, the other is ahead.

{summary(records)}

{behind(records)}

`python benchmarks/peers.py run`: contestants alternate, each in a process of its own with the same cores and
{"/".join(map(str, threads))} torch thread(s); the median of {rounds} rounds counts, and of several ways to do the same
the fastest (`python benchmarks/peers.py report` prints every figure and way). Steps are environment steps, without
warm-up; no library evaluates, logs or saves. Where a case was measured again, the last call counts; every ratio is to
our own figure in the same call.

- PPO: 8 environments, 2,048 steps a rollout, 10 epochs, networks 64x64 (tanh) for actor and critic; Pong: Nature's
  network on four frames of 84x84.
- SAC and TD3: networks 256x256, batches of 256, one update per environment step. DQN: batches of 32, one update for
  four steps.
- Replay: batches of 256 transitions of 17 observations and 6 actions; prioritized: with their new priorities.
- CleanRL-style and LeanRL-style are our own scripts with the structure and hyper-parameters of those projects, which
  are not packages.
- Memory is the peak of the process and its children, shared pages counted once.

## Not measured

{missing(records)}

Machine: {"; ".join(machines)}. Commit {", ".join(commits) or "unknown"}, {max(record["date"] for record in records)}.
Versions: {named}.
"""


if __name__ == "__main__":
    main()
