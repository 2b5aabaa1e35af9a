"""From settings to the parts of a run: environment, agent, collector, experience, learner."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector
from whorl.collect.waiting import WaitingCollector, collector_for
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.goals import GoalRewards
from whorl.core.spec import Continuous, Spec
from whorl.data.experience import Experience
from whorl.data.gradients import GradientQueue
from whorl.data.memory_check import free_on
from whorl.data.replay_setup import allocated_bytes
from whorl.distributed.actor import check_actors, envs_per_batch
from whorl.distributed.fleet_collector import RemoteEnvs, make_fleet
from whorl.distributed.learners import Learners, check_learners
from whorl.distributed.pool import make_vector
from whorl.distributed.remote import Notify, warn
from whorl.distributed.replay_shards import make_shards
from whorl.distributed.worker_collector import WorkerCollector
from whorl.envs.make import Source
from whorl.envs.vector import Compiled, VectorEnv
from whorl.nets.images import has_images
from whorl.run.dataset import add_demonstrations, check_dataset
from whorl.run.learner import Learner
from whorl.run.maps import VisitMap
from whorl.settings.merge import Settings
from whorl.settings.run import RunConfig
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

LEAST_BUFFER = 10_000
"""transitions below which a replay buffer is not shrunk to fit into memory"""
ROWS_WORTH_A_THREAD = 1024
"""rows per minibatch from which optimizers on a CPU gain from a thread each; below, Python's lock costs more"""


@dataclass
class Acting:
    """Where and with which copy of the policy rollouts are collected."""

    collector: Collector
    env: VectorEnv | RemoteEnvs
    policy: Agent
    """the copy of the agent that acts; the agent itself where it acts on the same device in this process"""
    weights: Callable[[Agent], list[Tensor]] = Agent.acting_tensors
    """the tensors of the agent that the copy is updated with"""
    dashboard: str = ""
    """address of Ray's dashboard"""
    workers: int | None = None
    """worker processes that step environments; None: not decided here"""

    def close(self) -> None:
        self.collector.close()
        self.env.close()


@dataclass
class Parts:
    """The parts of a run; `settings` are those given, with automatic values filled in."""

    settings: Settings
    device: torch.device
    streams: Streams
    agent: Agent
    acting: Acting
    experience: Experience
    learners: Learners | None
    learner: Learner
    map: VisitMap | None = None
    """visits by cell, where the environment has a map"""

    @property
    def acts_with_copy(self) -> bool:
        """Whether a copy of the agent acts, so that updates may run while a rollout is collected."""
        return self.acting.policy is not self.agent

    def send_weights(self) -> None:
        """Give the copy that acts the newest weights."""
        if self.acts_with_copy:
            copy_tensors(self.acting.weights(self.acting.policy), self.acting.weights(self.agent))

    def reset(self, number: int) -> None:
        """Reset all environments, for the time `number`; memories begin with the newest weights."""
        self.send_weights()
        self.acting.collector.reset(self.streams.seed("env", str(number)))

    @property
    def reset_period(self) -> int:
        """Iterations between resets of environments that can't be snapshotted; 0: theirs can."""
        return 0 if self.acting.env.snapshots else reset_period(self.settings.run)

    def close(self) -> None:
        """Stop processes and free the environments."""
        self.experience.close()
        if self.learners is not None:
            self.learners.close()
        self.acting.close()


@dataclass(frozen=True)
class Needs:
    """What callbacks ask for besides the metrics."""

    rows: bool = False
    """rollouts, which then pass through the learner even with replay shards"""
    steps: bool = False
    """every step of the environments, which this process then has to make itself"""
    episodes: bool = False
    """every episode that ended"""


def build(source: Source, settings: Settings, needs: Needs, notify: Notify = warn) -> Parts:
    """Create everything that training needs; nothing process-wide is changed. `notify` shows messages later on."""
    run = settings.run
    device = choose_device(run.device)
    streams = Streams(run.seed)
    spec = source.spec(run.num_envs)
    agent = _agent(source, settings, spec, streams)
    fitted = _fit_replay(settings, agent, device, notify)
    if fitted is not settings:
        settings, agent = fitted, _agent(source, fitted, spec, streams)
    agent.prepare(device, lambda name: streams.generator("learner", device, name))
    agent.use_threads(learner_threads(settings))
    with ExitStack() as stack:
        acting = _acting(source, settings, agent, device, streams, needs, notify)
        stack.callback(acting.close)
        if acting.workers is not None:
            # Saved in config.yaml: a resumed run must distribute its environments in the same way.
            settings = settings.replace(workers=acting.workers)
        experience = _experience(settings, agent, acting, streams, notify)
        stack.callback(experience.close)
        if isinstance(acting.collector, WaitingCollector):
            experience.expect_gaps()
        # Replay needs a successor for each row.
        if agent.off_policy and not acting.env.snapshots and reset_period(run) * run.num_steps == 1:
            raise ConfigError(
                f"reset_every is {run.reset_every}: {run.num_envs} environments would be reset after every row, and "
                f"none would have a successor to learn from; use more than {run.num_envs}"
            )
        learners = None
        if run.learners > 1:
            check_learners(agent, run, experience)
            copy = build_agent(settings, agent.spec)
            learners = Learners(agent, copy, run, getattr(experience, "batches", []), notify)
        shared = None if learners is None else learners.update
        learner = Learner(agent, device.type == "cuda" and shared is None, run.compile, shared)
        stack.pop_all()
    mapped = agent.spec.map_shape is not None and run.actor_gradients == "none"
    visits = VisitMap(agent.spec, device) if mapped else None
    return Parts(settings, device, streams, agent, acting, experience, learners, learner, visits)


def _agent(source: Source, settings: Settings, spec: Spec, streams: Streams) -> Agent:
    """The agent on the CPU, checked against the settings of the run."""
    run = settings.run
    agent = build_agent(settings, spec, streams.seed("learner"))
    check_actors(run, agent)
    check_dataset(settings, agent)
    agent.check(envs_per_batch(run) * run.num_steps)
    if relabels(settings):
        agent.goal_rewards = source.goal_rewards()
    return agent


def kind_of(source: Source) -> tuple[str, ...]:
    """Words for the kind of environment, for settings that depend on it (`whorl.settings.conditions`)."""
    spec = source.spec(1)
    images = has_images(spec.observation, 8)
    continuous = [isinstance(leaf, Continuous) for leaf in tree.leaves(spec.action)]
    words = {
        "images": images,
        "vectors": not images,
        "continuous": all(continuous),
        "discrete": not any(continuous),
        "native": source.world is not None,
    }
    return tuple(word for word, holds in words.items() if holds)


def learner_threads(settings: Settings) -> int:
    """Threads in which the agent's optimizers step at the same time."""
    run = settings.run
    rows = getattr(settings.algo, "batch_size", envs_per_batch(run) * run.num_steps)
    # Learners that share batches must exchange gradients in one order.
    gains = choose_device(run.device).type == "cpu" and rows >= ROWS_WORTH_A_THREAD and run.learners == 1
    return run.learner_threads if gains else 1


def _fit_replay(settings: Settings, agent: Agent, learner: torch.device, notify: Notify) -> Settings:
    """The settings, in which a replay buffer whose size nobody chose is halved until it fits into memory."""
    if settings.buffer_chosen or not agent.off_policy:
        return settings
    cfg, before = settings.algo, settings.algo.buffer_size
    if cfg.shards and settings.run.ray:  # each node has memory of its own
        return settings
    shared = torch.device("cpu") if cfg.shards else replay_device(settings, learner, agent.goal_rewards)

    def size() -> int:
        return allocated_bytes(cfg, agent.spec, shared, agent.stored(), agent.columns())

    free, needed = free_on(shared), size()
    if needed <= free:
        return settings
    # Half of what is free, because the system, the networks and the environments need memory too.
    while size() > free / 2 and cfg.buffer_size // 2 >= LEAST_BUFFER:
        cfg = replace(cfg, buffer_size=cfg.buffer_size // 2)
    notify(
        f"the replay buffer holds {cfg.buffer_size:,} transitions: {before:,} would take {needed / 1e9:.1f} GB, and "
        f"{free / 1e9:.1f} GB are free on {shared.type}; set buffer_size to choose another number"
    )
    return settings.replace(buffer_size=cfg.buffer_size)


def relabels(settings: Settings) -> bool:
    """Whether samples of the replay buffer are given other goals."""
    return getattr(settings.algo, "her", "none") != "none"


def replay_device(
    settings: Settings, learner: torch.device, goal_rewards: GoalRewards | None = None
) -> torch.device:
    """Where the replay buffer is stored: on the learner's device unless settings choose another."""
    name = getattr(settings.algo, "replay_device", "auto")
    if goal_rewards is not None and not goal_rewards.on_device:
        if name == "cuda":
            raise ConfigError(
                "her calls the environment's compute_reward with arrays in host memory, but replay_device is cuda; "
                "use auto or cpu"
            )
        return torch.device("cpu")
    if getattr(settings.algo, "compress", False):
        if name == "cuda":
            raise ConfigError(
                "compress keeps the replay buffer in host memory, but replay_device is cuda; use cpu"
            )
        return torch.device("cpu")
    if name == "cpu" or (learner.type == "cpu" and name == "auto"):
        return torch.device("cpu")
    if learner.type != "cuda":
        raise ConfigError(f"replay_device is {name!r}, but the learner is on {learner}; use auto or cpu")
    return learner


def _acting(
    source: Source,
    settings: Settings,
    agent: Agent,
    learner: torch.device,
    streams: Streams,
    needs: Needs,
    notify: Notify,
) -> Acting:
    """Actors, workers that act, or this process with or without workers that step."""
    run, device = settings.run, choose_device(settings.run.env_device)
    if run.actors:
        copy = build_agent(settings, agent.spec)
        if needs.steps:
            raise _unseen(f"{run.actors} actors make their steps", "on_episode, or leave actors out")
        fleet = make_fleet(source, copy, run, streams, needs.rows, needs.episodes, notify)
        remote, workers = RemoteEnvs(source.id), fleet.role.workers
        return Acting(fleet, remote, copy, fleet.role.weights, fleet.fleet.dashboard, workers)
    workers = source.workers(run.workers, run.num_envs)
    if workers and run.acting != "central":
        if needs.steps:
            raise _unseen(f"{workers} workers act", "acting central, or workers 0")
        copy = build_agent(settings, agent.spec)
        acting = WorkerCollector(
            *(source, copy, run.num_envs, run.num_steps, workers, streams, run.hold_policy, run.env_timeout)
        )
        acting.episode_statistics.record = needs.episodes
        return Acting(acting, acting.env, copy, workers=workers)
    if workers and run.hold_policy:
        raise ConfigError(
            "hold_policy must know when all environments start an episode, but acting is central with "
            f"{workers} workers; use acting auto, or workers 0"
        )
    policy = agent if device == learner else build_agent(settings, agent.spec).to(device)
    env = make_vector(source, run.num_envs, device, workers, run.compile, run.env_timeout)
    if isinstance(env, Compiled):
        notify(env.compile_notice)
    acts, renew = policy, None
    if run.hold_policy:
        acts = build_agent(settings, agent.spec).to(device)
        renew = partial(copy_tensors, acts.acting_tensors(), policy.acting_tensors())
    # A graph can't ask whether all environments start an episode, nor call a callback at every step.
    capture = device.type == "cuda" and env.capturable and not run.hold_policy and not needs.steps
    generator = streams.generator("act", device)
    kind = collector_for(env)
    if kind is WaitingCollector and needs.steps:
        raise _unseen(f"environments of {source.id} answer", "on_episode")
    local = kind(env, acts, run.num_steps, generator, capture, renew=renew)
    local.episode_statistics.record = needs.episodes
    return Acting(local, env, policy, workers=workers)


def _unseen(why: str, remedy: str) -> ConfigError:
    return ConfigError(f"a callback has on_step, but {why} by themselves, out of its sight; use {remedy}")


def _experience(
    settings: Settings, agent: Agent, acting: Acting, streams: Streams, notify: Notify
) -> Experience:
    run, cfg = settings.run, agent.cfg
    if run.actors and run.actor_gradients != "none":
        return GradientQueue(run.actor_gradients == "averaged")
    if agent.off_policy and cfg.shards:
        return make_shards(agent, acting.collector, run, streams, agent.device, notify)
    device = replay_device(settings, agent.device, agent.goal_rewards)
    generator = streams.generator("replay", device)
    experience: Experience = agent.experience(generator)
    if getattr(cfg, "demonstrations", ""):
        add_demonstrations(experience, agent, generator)
    if run.compile:
        experience.compile()
    return experience


def reset_period(run: RunConfig) -> int:
    """Iterations between resets of environments without snapshots."""
    return max(1, -(-run.reset_every // (run.num_envs * run.num_steps)))


def on_gpu(settings: Settings, place: int) -> Settings:
    """Settings of one of several runs at the same time: where there are several GPUs, each has one of them in turn."""
    count = torch.cuda.device_count()
    if settings.run.device != "auto" or count < 2:
        return settings
    return settings.replace(device=f"cuda:{place % count}")


def choose_device(name: str) -> torch.device:
    """The device that a setting names; auto is a GPU if there is one."""
    if name == "auto":  # a device with its number: torch calls cuda and cuda:0 different
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device is {name!r}, but torch finds no GPU; use auto or cpu, for hardware as well"
            )
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"device is {name!r}, but there are {torch.cuda.device_count()} GPUs")
        return torch.device("cuda", device.index or 0)
    return device


@contextmanager
def gpu_memory(settings: Settings) -> Iterator[None]:
    """Name the settings to lower if the GPU runs out of memory in this block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        names = ("num_envs", "num_steps", "batch_size", "buffer_size")
        values = {name: getattr(settings, name, None) for name in names}
        given = ", ".join(f"{name} ({value:,})" for name, value in values.items() if value)
        raise ConfigError(
            f"the GPU has no memory left{_in_use()}; lower {given} or the sizes of the networks, "
            "put the replay buffer on the host with replay_device=cpu where there is one, or use device=cpu"
        ) from error


def _in_use() -> str:
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved()
    return f" ({own / 2**30:.1f} of {total / 2**30:.1f} GiB taken by this process, {free / 2**30:.1f} free)"


@torch.no_grad()
def copy_tensors(into: list[Tensor], source: list[Tensor]) -> None:
    """Copy in place, one by one."""
    for target, value in zip(into, source, strict=True):
        target.copy_(value)
