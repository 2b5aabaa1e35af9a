"""A soak: trainings whose processes are killed, stopped and slowed at random, on a disk that is full now and then.

`make chaos` runs it for an hour on two cores, `make chaos SECONDS=480` for eight minutes; `python tests/chaos/soak.py
--seed 3 --kinds actors` chooses. Three trainings take turns: with actors and replay shards, with environment workers,
and with actors on a Ray cluster of two nodes where Ray is installed. Their environment raises, hangs and leaks
(`trouble.py`). A training that ended, by our hand or with an error of one sentence, is resumed.

At the end every training has reached its budget, its counters add up, nothing of it is left in the process table or in
/dev/shm, and the memory of its processes has not grown, except of those whose environment leaks. The memory is drawn
to memory.png, and a line with all counts is added to soak.jsonl, both in build/chaos.

The run folder and /dev/shm are small disks in memory in a mount namespace of their own (`unshare`); where that is not
allowed the disk is never full, and files of others in /dev/shm may be taken for ours.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

sys.path.append(str(Path(__file__).parent))
import trouble

ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES = 48 * 2**20
"""size of the disk for run folders; checkpoints of these trainings take a few megabytes"""
PATIENCE = 240.0
"""seconds that a training has to make a step, to end, or to reach its budget once it is left alone"""
BUDGET = 1500
"""environment steps of the last part, in which nothing is killed"""
COMMON = (
    *("--env-timeout", "8", "--actor-restarts", "100000", "--checkpoint-freq", "400", "--log-freq", "1"),
    *(
        "--keep-checkpoints",
        "2",
        "--no-eval",
        "--no-tensorboard",
        "--quiet",
        "--total-timesteps",
        "1000000000",
    ),
)
KINDS: dict[str, tuple[str, ...]] = {
    "actors": (
        *(
            "apex_dqn",
            "trouble.Trouble",
            "--actors",
            "3",
            "--num-envs",
            "6",
            "--shards",
            "2",
            "--num-steps",
            "8",
        ),
        *(
            "--learning-starts",
            "100",
            "--updates-per-step",
            "0.1",
            "--buffer-size",
            "3000",
            "--batch-size",
            "16",
        ),
    ),
    "workers": (
        *(
            "dqn",
            "trouble.Trouble",
            "--workers",
            "2",
            "--num-envs",
            "4",
            "--num-steps",
            "8",
            "--batch-size",
            "16",
        ),
        *("--learning-starts", "100", "--updates-per-step", "0.1", "--buffer-size", "1000"),
    ),
    "ray": (
        "impala",
        "trouble.Trouble",
        "--actors",
        "2",
        "--num-envs",
        "4",
        "--num-steps",
        "10",
        "--max-lag",
        "3",
    ),
}
ROWS = {"actors": 6 * 8, "workers": 4 * 8, "ray": 4 * 10}
"""environment steps of a rollout at most"""
CHANCES = {"actors": (1e-4, 5e-5, 5e-5), "workers": (2e-5, 1e-5, 1e-5), "ray": (1e-4, 5e-5, 5e-5)}
"""that a step raises, hangs, or begins to leak; with workers each of them ends the run"""
EVENTS = {"kill": 6, "stop": 5, "slow": 3, "learner": 1, "terminate": 1, "disk": 1, "node": 1}
"""what happens and how often, relative to each other"""
WORKER_NODES = 2
"""nodes of Ray's cluster besides the first, which stays"""
SETTLING = 30
"""seconds, and rows of metrics, after which a process has loaded all it needs and filled its replay buffer"""
MEASURED = 1200
"""seconds of a soak after which the memory of some process must have been measured"""
GROWTH = 6.0
"""megabytes by which the memory of a process may grow in its life, besides one for each minute"""


class Sample(NamedTuple):
    """The memory of one process at one time."""

    time: float
    kind: str
    role: str
    """learner or other"""
    pid: int
    megabytes: float
    settled: bool
    """whether it has started, and its training has learned for a while"""


@dataclass
class Soak:
    """What the trainings have in common, and what was found."""

    folder: Path
    """of logs and results, on an ordinary disk"""
    disk: Path
    """of run folders"""
    small: bool
    """whether `disk` is a small one that can be filled"""
    seed: int
    events: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """time and name of each event"""
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def happened(self, name: str) -> None:
        self.events[name] += 1
        self.marks.append((self.now, name))


class Training:
    """One training, which is started, troubled and resumed until its time is over."""

    def __init__(self, soak: Soak, kind: str, cluster: Any = None) -> None:
        self.soak, self.kind, self.cluster = soak, kind, cluster
        self.draw = random.Random(f"{soak.seed} {kind}")
        self.runs, self.notes = soak.disk / kind, soak.folder / f"notes-{kind}"
        self.log = soak.folder / f"{kind}.log"
        for folder in (self.runs, self.notes):
            folder.mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: dict[int, float] = {}
        """processes that belonged to it, and when they were created"""
        self.ballast = soak.disk / "ballast"
        self.starts = 0
        self._output = 0
        """where in the log the newest process began to write"""

    # Starting and ending

    def start(self, *more: str) -> None:
        run = self.run_dir()
        words = ["resume", str(run), "--trust", "trouble"] if run else ["train", *KINDS[self.kind], *COMMON]
        if run is None:
            raises, hangs, leaks = CHANCES[self.kind]
            options = {"notes": self.notes, "raises": raises, "hangs": hangs, "leaks": leaks, "slow": 0.002}
            words += [
                word for name, value in options.items() for word in (f"--env_options.{name}", str(value))
            ]
            words += ["--runs", str(self.runs), "--seed", str(self.draw.randrange(10**6))]
            words += ["--ray", self.cluster.address] if self.cluster else []
        self._output = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            command = [sys.executable, "-m", "whorl", *words, *more]
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)
        self.starts += 1

    def run_dir(self) -> Path | None:
        found = sorted(path for path in self.runs.iterdir() if (path / "config.yaml").is_file())
        return found[-1] if found else None

    def rows(self) -> int:
        """Rows of metrics so far."""
        run = self.run_dir()
        path = run / "metrics.jsonl" if run else None
        return path.read_bytes().count(b"\n") if path and path.exists() else 0

    def tree(self) -> list[psutil.Process]:
        """The processes of the training besides the learner; on Ray the actors, which belong to the nodes.

        Not the nodes' own processes, such as ray::RuntimeEnvAgent: a node ends itself when one of them is missing, the
        head with the whole cluster.
        """
        assert self.process is not None
        found = []
        with suppress(psutil.Error):
            found = psutil.Process(self.process.pid).children(recursive=True)
        for process in psutil.Process().children(recursive=True) if self.cluster else ():
            with suppress(psutil.Error):
                if "ray::RayHost" in " ".join(process.cmdline()) and process not in found:
                    found.append(process)
        return found

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def said(self) -> str:
        """What the newest process has written."""
        return self.log.read_bytes()[self._output :].decode(errors="replace")

    def lost(self) -> bool:
        """Whether Ray has ended the learner, because it lost its node, and a sentence says so."""
        return self.cluster is not None and wait_for(
            lambda: "was ended from outside Python" in self.said(), 30.0
        )

    def settle(self, expected: tuple[int, ...] = ()) -> int:
        """After the end of the process: its status is one that it may have, and nothing of it is left."""
        assert self.process is not None
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.problem(f"did not end within {PATIENCE:.0f} s")
            self.process.kill()
            status = self.process.wait()
        text = self.said()
        if status == 1 and self.lost():
            self.soak.happened("lost")
        elif status not in (2, *expected):
            self.problem(f"ended with status {status}: {text[-1500:]}")
        elif status == 2 and not any(line.startswith("whorl: ") for line in text.splitlines()):
            self.problem(f"ended with status 2 and no sentence: {text[-1500:]}")
        if status == 2:
            self.soak.happened("error")
        if not self.cluster:
            wait_for(lambda: not self.left(), 60.0)
            if self.left():
                self.problem(f"left processes behind: {self.left()}")
                for pid in self.left():
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        return status

    def left(self) -> list[int]:
        """Processes that belonged to it and still run."""
        found = []
        for pid, created in self.seen.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return found

    def problem(self, text: str) -> None:
        self.soak.problems.append(f"{self.kind} at {self.soak.now:.0f} s: {text}")

    # Trouble

    def soak_for(self, seconds: float) -> None:
        """Trouble it for so long, then let it reach a budget."""
        over = time.monotonic() + seconds
        self.start()
        began = time.monotonic()
        wait_for(lambda: self.ended() or self.rows() > 0, PATIENCE)
        # A machine on which processes take long to start needs time for them to do something before they are killed.
        between = max(4.0, 0.5 * (time.monotonic() - began))
        while time.monotonic() < over:
            pause = time.monotonic() + self.draw.expovariate(1 / between)
            while time.monotonic() < pause and not self.ended():
                time.sleep(0.1)
            if self.ended():
                self.settle()
                self.start()
                continue
            self.trouble()
        self.calm()

    def trouble(self) -> None:
        others = self.tree()
        names = [name for name in EVENTS if self.possible(name) and (others or name != "kill")]
        name = self.draw.choices(names, [EVENTS[name] for name in names])[0]
        victim = self.draw.choice([psutil.Process(self.process.pid), *others]) if self.process else None
        assert self.process is not None and victim is not None
        with suppress(psutil.NoSuchProcess):
            if name == "kill":
                self.draw.choice(others).kill()
            elif name == "stop":
                stopped(victim, self.draw.uniform(0.5, 5.0), self.draw.uniform(0.5, 5.0), 1)
            elif name == "slow":
                stopped(victim, 0.06, 0.03, 60)
            elif name == "learner":
                self.process.kill()
                self.settle((-signal.SIGKILL,))
                self.start()
            elif name == "terminate":
                self.process.terminate()
                self.settle((143, 130, -signal.SIGTERM))
                self.start()
            elif name == "disk":
                self.fill_disk(self.draw.uniform(2.0, 10.0))
            elif name == "node":
                nodes = sorted(self.cluster.worker_nodes, key=lambda node: node.unique_id)
                if len(nodes) == WORKER_NODES:
                    self.cluster.remove_node(self.draw.choice(nodes), allow_graceful=False)
                # Where a busy machine can't start one in time, the next event of this kind does.
                name = "node" if add_node(self.cluster, 2) else "late node"
            self.soak.happened(name)

    def possible(self, event: str) -> bool:
        if event == "node":
            return self.cluster is not None
        if event == "learner" or event == "terminate":
            return self.run_dir() is not None
        return event != "disk" or (self.soak.small and self.run_dir() is not None)

    def fill_disk(self, seconds: float) -> None:
        """No space for a while."""
        with suppress(OSError), open(self.ballast, "wb", buffering=0) as file:
            while file.write(bytes(2**16)):
                pass
        over = time.monotonic() + seconds
        while time.monotonic() < over and not self.ended():
            time.sleep(0.1)
        self.ballast.unlink()

    # The end

    def calm(self) -> None:
        """Leave it alone until it has reached a budget, and check what it counted."""
        wait_for(lambda: self.ended() or self.run_dir() is not None, PATIENCE)
        if not self.ended():
            assert self.process is not None
            self.process.terminate()
        self.settle((143, 130, -signal.SIGTERM))
        run = self.run_dir()
        if run is None:
            self.problem("never got as far as a run folder")
            return
        goal = (newest(run) or {"steps": 0})["steps"] + BUDGET
        status, over = -1, time.monotonic() + 2 * PATIENCE
        while status != 0 and time.monotonic() < over:  # the environment still raises now and then
            self.start("--total-timesteps", str(goal))
            status = self.settle((0,))
        self.check(run, goal, status)

    def check(self, run: Path, goal: int, status: int) -> None:
        saved = newest(run) or {"steps": 0}
        steps = saved["steps"]
        if status != 0 or not goal <= steps < goal + ROWS[self.kind]:
            self.problem(f"the budget of {goal} steps was not reached: {steps} steps, status {status}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        numbers = [row["iteration"] for row in rows]
        if numbers != list(range(1, len(rows) + 1)):
            self.problem("iterations are missing in metrics.jsonl, or there twice")
        for before, after in pairwise(rows):
            if not 0 < after["steps"] - before["steps"] <= ROWS[self.kind]:
                self.problem(
                    f"iteration {after['iteration']} counts {after['steps'] - before['steps']} steps"
                )
                break
        made, dropped = (
            trouble.steps_in(self.notes),
            int(sum(row.get("actors/dropped_steps", 0) for row in rows)),
        )
        last = rows[-1] if rows else {"steps": 0}
        if last["steps"] != steps or steps + dropped > made:
            self.problem(f"{steps} steps counted and {dropped} dropped, but environments made {made}")
        self.soak.trainings[self.kind] = {
            "starts": self.starts,
            "steps": steps,
            "dropped": dropped,
            "made": made,
            "iterations": len(rows),
            "actors_replaced": int(last.get("actors/replaced", 0)),
            "shards_replaced": int(last.get("shards/replaced", 0)),
        }
        self.check_state(run, steps)

    def check_state(self, run: Path, steps: int) -> None:
        """The replay buffer has counted the same steps, and what was learned is finite."""
        from whorl.run.checkpointing import find_checkpoint

        found = find_checkpoint(run)
        stored = found.state["experience"].get("steps", steps)
        if int(stored) != steps:
            self.problem(f"{steps} steps were counted, but {int(stored)} went to the replay buffer")
        for name, value in found.state["agent"]["module"].items():
            if value.is_floating_point() and not value.isfinite().all():
                self.problem(f"{name} is not finite")


def newest(run: Path) -> dict[str, Any] | None:
    """The metadata of the newest checkpoint."""
    found = sorted(run.glob("checkpoint_*/metadata.yaml"), key=lambda path: int(path.parent.name[11:]))
    return yaml.safe_load(found[-1].read_text()) if found else None


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def stopped(process: psutil.Process, shortest: float, longest: float, times: int) -> None:
    """Stop a process and let it go on, some times."""
    try:
        for _ in range(times):
            process.suspend()
            time.sleep(shortest)
            process.resume()
            time.sleep(longest if times > 1 else 0)
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    over = time.monotonic() + seconds
    while not what():
        if time.monotonic() > over:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def sampled(soak: Soak, training: Training) -> Iterator[None]:
    """Meanwhile, note the memory of all its processes every second."""
    over = threading.Event()
    first: dict[int, tuple[float, int]] = {}
    """when each process was seen first, and how many rows of metrics there were"""

    def watch() -> None:
        while not over.wait(1.0):
            process = training.process
            if process is None:
                continue
            rows = training.rows()
            for each in [process.pid, *(other.pid for other in training.tree())]:
                with suppress(psutil.Error):
                    found = psutil.Process(each)
                    if not training.cluster:
                        training.seen[each] = found.create_time()
                    since, before = first.setdefault(each, (soak.now, rows))
                    first[each] = since, min(before, rows)  # a resumed run cuts its metrics back
                    settled = soak.now - since > SETTLING and rows - first[process.pid][1] >= SETTLING
                    role = "learner" if each == process.pid else "other"
                    memory = found.memory_info().rss / 2**20
                    if not memory:  # it has just ended
                        continue
                    soak.samples.append(Sample(soak.now, training.kind, role, each, memory, settled))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def growths(soak: Soak) -> dict[int, tuple[str, float, float]]:
    """Kind and role, minutes and growth in megabytes of the processes that were measured for a minute.

    The growth is from the first quarter of that time to the last one. Processes whose environment leaks are left out.
    """
    lives, leaks = dict[int, list[Sample]](), leaky(soak)
    for sample in soak.samples:
        if sample.settled and sample.pid not in leaks:
            lives.setdefault(sample.pid, []).append(sample)
    found = {}
    for pid, life in lives.items():
        minutes, memory, quarter = (
            (life[-1].time - life[0].time) / 60,
            [s.megabytes for s in life],
            len(life) // 4,
        )
        if minutes >= 1 and quarter:
            growth = statistics.median(memory[-quarter:]) - statistics.median(memory[:quarter])
            found[pid] = (f"{life[0].kind} {life[0].role}", minutes, growth)
    return found


def leaky(soak: Soak) -> set[int]:
    """Processes whose environment leaks."""
    return {int(path.name.split("-")[1]) for path in soak.folder.glob("notes-*/leak-*")}


def check_memory(soak: Soak) -> None:
    if soak.now > MEASURED and not growths(soak):
        soak.problems.append("no process lived long enough for its memory to be measured")
    for pid, (who, minutes, growth) in growths(soak).items():
        if growth > GROWTH + minutes:
            soak.problems.append(
                f"{who}, process {pid}: memory grew by {growth:.1f} MB in {minutes:.1f} minutes"
            )


def draw_memory(soak: Soak, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(sample.kind for sample in soak.samples))
    figure, axes = pyplot.subplots(
        len(kinds), 1, figsize=(10, 3 * len(kinds)), squeeze=False, layout="constrained"
    )
    leaks = leaky(soak)
    for kind, axis in zip(kinds, axes[:, 0]):
        mine = [sample for sample in soak.samples if sample.kind == kind]
        for pid in dict.fromkeys(sample.pid for sample in mine):
            life = [sample for sample in mine if sample.pid == pid]
            style = (
                {"color": "C3", "linewidth": 2}
                if life[0].role == "learner"
                else {"color": "C0", "linewidth": 1}
            )
            style |= {"linestyle": ":", "color": "grey"} if pid in leaks else {}
            axis.plot([s.time / 60 for s in life], [s.megabytes for s in life], **style)
        for at, _ in soak.marks:
            if mine[0].time <= at <= mine[-1].time:
                axis.axvline(at / 60, ymax=0.04, color="black", linewidth=0.5)
        axis.set(
            title=f"{kind}: learner red, others blue, environments that leak dotted",
            ylabel="MB",
            ylim=(0, None),
        )
    axes[-1, 0].set_xlabel("minutes; the ticks are what was done to the processes")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


# Ray


class NoNode(Exception):
    """Ray gives a node 30 seconds to start, which a busy machine exceeds."""


def add_node(cluster: Any, attempts: int, **more: Any) -> bool:
    """Whether a node could be started."""
    from whorl.distributed.ray import LOOPBACK

    options = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, **more}
    for _ in range(attempts):
        with suppress(Exception):  # Ray raises no other
            cluster.add_node(node_ip_address=LOOPBACK, **options)
            return True
    return False


@contextmanager
def ray_cluster() -> Iterator[Any]:
    import secrets

    os.environ.update(
        RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), PYTHONPATH=environment()["PYTHONPATH"]
    )
    from ray.cluster_utils import Cluster

    from whorl.distributed.ray import PATIENT

    cluster = Cluster()
    # The first one holds the cluster's directory, and stays. That a node was removed is known after five seconds.
    first = {"_system_config": {**PATIENT, "health_check_period_ms": 1000}}
    try:
        for more in (first, *[{}] * WORKER_NODES):
            if not add_node(cluster, 8, **more):
                raise NoNode("no node of Ray started within 30 s, tried 8 times; this machine is too busy")
        yield cluster
    finally:
        cluster.shutdown()


# The whole


def run(seconds: float, seed: int, kinds: list[str], folder: Path, small: bool) -> Soak:
    """Soak each kind of training for its share of the time."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    soak = Soak(work, Path(os.environ["CHAOS_DISK"]) if small else work / "disk", small, seed)
    shm = set(os.listdir("/dev/shm"))
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for kind in kinds:
        try:
            with ray_cluster() if kind == "ray" else nullcontext() as cluster:
                training = Training(soak, kind, cluster)
                with sampled(soak, training):
                    training.soak_for(seconds / len(kinds))
        except NoNode as error:  # what was found with the others counts
            soak.problems.append(f"{kind} at {soak.now:.0f} s: {error}")
    wait_for(lambda: not others(before), 60.0)
    soak.problems += [f"process {pid} is left: {name}" for pid, name in others(before)]
    soak.problems += [f"/dev/shm/{name} is left" for name in sorted(set(os.listdir("/dev/shm")) - shm)]
    check_memory(soak)
    return soak


def others(before: set[int]) -> list[tuple[int, str]]:
    """Child processes, also of children that have ended, that were not there before."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.pid, " ".join(process.cmdline())[:100]))
    return found


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends, so that they are found."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def enter_namespace() -> bool:
    """Start this command again where its mounts are its own; False where that is not allowed, True once it is there."""
    if "CHAOS_DISK" in os.environ:
        return True
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    disk = ROOT / "build" / "chaos" / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    mounts = f"mount -t tmpfs -o size={DISK_BYTES} chaos '{disk}' && mount -t tmpfs -o size=1g chaos /dev/shm"
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*unshare, "sh", "-c", mounts], capture_output=True).returncode
    )
    if allowed:
        os.environ["CHAOS_DISK"] = str(disk)
        command = ["sh", "-c", f'{mounts} && exec "$@"', "soak", sys.executable, *sys.argv]
        os.execvp(unshare[0], [*unshare, *command])
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "chaos")
    args = parser.parse_args()
    small = enter_namespace()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    adopt_orphans()
    kinds = [kind for kind in args.kinds if kind != "ray" or has_ray()]
    soak = run(args.seconds, args.seed, kinds, args.to.resolve(), small)
    draw_memory(soak, args.to / "memory.png")
    growth = [(who, round(minutes, 1), round(mb, 1)) for who, minutes, mb in growths(soak).values()]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "seconds": round(soak.now),
        "seed": args.seed,
        "disk_full": small,
        "not_run": [kind for kind in args.kinds if kind not in kinds],
        "events": dict(sorted(soak.events.items())),
        "trainings": soak.trainings,
        "processes_measured": len(growth),
        "largest_growth": max(growth, key=lambda each: each[2], default=None),
        "problems": soak.problems,
    }
    with open(args.to / "soak.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    sys.stdout.write(json.dumps(result, indent=1) + f"\n{args.to / 'memory.png'}\n")
    return 1 if soak.problems else 0


def has_ray() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None


if __name__ == "__main__":
    raise SystemExit(main())
