"""Episodes with a fixed policy. Evaluation never draws from a random stream of training."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any, TypeAlias

import torch

from whorl.agents.agent import Agent, Context
from whorl.collect.collector import acting
from whorl.core import messages, tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.distributed.pool import make_vector
from whorl.envs.make import Source
from whorl.envs.vector import Step, VectorEnv
from whorl.run.build import Parts
from whorl.run.viewer import Viewer, drawn, frame_rate
from whorl.settings.run import RunConfig


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of complete episodes."""

    returns: list[float]
    lengths: list[int]
    successes: list[bool] = field(default_factory=list)
    """whether each episode succeeded, of those whose last `info` has `is_success` or `success`"""
    measures: dict[str, float] = field(default_factory=dict)
    """means of the environment's other episode statistics"""
    cut: int = 0
    """episodes truncated at the limit of steps, counted with their returns so far"""
    players: int = 1
    """agents that play each episode together; each has a return of its own"""

    @property
    def episodes(self) -> int:
        return -(-len(self.returns) // self.players)

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)

    @property
    def std(self) -> float:
        return pstdev(self.returns)

    @property
    def mean_length(self) -> float:
        return fmean(self.lengths)

    @property
    def success_rate(self) -> float | None:
        """Share of episodes that succeeded; None where the environment does not report success."""
        return fmean(self.successes) if self.successes else None

    def metrics(self) -> dict[str, float]:
        rate = self.success_rate
        return {
            "evaluation/return": self.mean_return,
            "evaluation/return_std": self.std,
            "evaluation/return_min": min(self.returns),
            "evaluation/return_max": max(self.returns),
            "evaluation/length": self.mean_length,
            **({} if rate is None else {f"evaluation/{SUCCESS}": rate}),
            **{f"evaluation/{name}": value for name, value in self.measures.items()},
        }


@dataclass(frozen=True)
class Evaluations(Evaluation):
    """The evaluation of several behaviours: all returns together, and those of each."""

    behaviors: dict[str, Evaluation] = field(default_factory=dict)

    @classmethod
    def of(cls, behaviors: dict[str, Evaluation]) -> "Evaluations":
        found = behaviors.values()
        return cls(
            [value for one in found for value in one.returns],
            [value for one in found for value in one.lengths],
            [value for one in found for value in one.successes],
            cut=sum(one.cut for one in found),
            behaviors=behaviors,
        )

    @property
    def mean_return(self) -> float:
        """The mean over behaviours of their mean returns."""
        return fmean(one.mean_return for one in self.behaviors.values())

    def metrics(self) -> dict[str, float]:
        return {
            f"{behavior}/{name}": value
            for behavior, one in self.behaviors.items()
            for name, value in one.metrics().items()
        }


Watch: TypeAlias = Callable[[Any, Step, Tree], None]
"""sees every step of an evaluation: the environment, which it may ask for pictures, its answer, and the actions"""
EVAL_ENVS = 32
"""most environments that are stepped one after another in an evaluation"""
SYNC_EVERY = 32
"""steps between checks on a GPU whether all episodes have ended"""


def shares_of(episodes: int, env: VectorEnv) -> list[int]:
    """How many episodes each environment plays, so that `episodes` are played in all, by `env.players` rows each."""
    num_envs, rows = env.spec.num_envs, episodes * env.players
    return [rows // num_envs + (env_index < rows % num_envs) for env_index in range(num_envs)]


def run_episodes(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    watch: Watch | None = None,
    max_steps: int = RunConfig.eval_max_steps,
    warn: bool = True,
) -> Evaluation:
    """Play until `episodes` episodes have ended, the same number (plus or minus one) in every environment.

    Where `env.players` play together, each of them has a return for every episode.
    Counting the episodes that end first would favour short ones. `watch(env, step, action)` is called after each step.
    An episode is truncated after `max_steps`, or after as many steps without an answer (`Step.waits`); its environment
    waits then until all can be reset; `warn` says so, for callers that did not ask for it.
    """
    num_envs, device = env.spec.num_envs, agent.device
    generator = torch.Generator(device).manual_seed(seed)
    shares = shares_of(episodes, env)
    most, quota = max(shares), torch.tensor(shares, device=device)
    # One column per environment, one row per episode, and an extra row for steps beyond the quota.
    returns = torch.zeros(most + 1, num_envs, dtype=torch.float64, device=device)
    lengths = torch.zeros(most + 1, num_envs, dtype=torch.int64, device=device)
    episode = torch.zeros(1, num_envs, dtype=torch.int64, device=device)
    names = env.spec.measures
    measures = torch.full((most + 1, num_envs, len(names)), torch.nan, device=device)
    obs = tree.to(env.reset(seed), device)
    reset = torch.ones(num_envs, dtype=torch.bool, device=device)
    length = torch.zeros(num_envs, dtype=torch.int64, device=device)
    """of the episode under way"""
    cut = torch.zeros(num_envs, dtype=torch.bool, device=device)
    """environments whose episode was truncated: they wait for a reset of all"""
    silent = torch.zeros_like(length)
    """steps since the last answer"""
    cuts = torch.zeros((), dtype=torch.int64, device=device)
    rounds = itertools.count(1)
    with acting(device):
        memory = agent.begin(obs, collecting=False)
        for number in itertools.count(1):
            acted = agent.act_tracked(obs, memory, Context(reset, generator, greedy=deterministic))
            before = tree.clone(obs) if agent.tracks else obs  # a step may overwrite it
            step = env.step(acted.action)
            obs, opens, reset = tree.to(step.obs, device), reset, step.reset.to(device, copy=True)
            reward = step.reward.to(device, copy=True)
            idle = reset  # rows that are no step
            held = memory if step.waits is None else agent.kept(memory)
            after = agent.follow(acted.memory, before, acted.action, reward, obs, reset)[0]
            if step.waits is not None:
                waits = step.waits.to(device)
                after, idle = tree.where(waits, held, after), reset | waits
                silent = torch.where(waits, silent + 1, 0)
                # What starts an episode still does when it is answered.
                reset = torch.where(waits, opens, reset)
            memory = after
            at = torch.where(cut, quota, torch.minimum(episode, quota))
            returns.scatter_add_(0, at, step.reward.to(device, torch.float64).unsqueeze(0))
            lengths.scatter_add_(0, at, (~idle).long().unsqueeze(0))
            ended = step.terminated | step.truncated
            if step.measures is not None and bool(ended.any()):
                told = torch.where(ended.unsqueeze(1), step.measures, torch.nan).to(device)
                # nan in the rows of unfinished episodes is overwritten at their ends
                measures.scatter_(0, at.unsqueeze(-1).expand_as(told.unsqueeze(0)), told.unsqueeze(0))
            ended = ended.to(device)
            length = torch.where(ended | reset, 0, length + (~idle).long())
            newly = ((length == max_steps) | (silent == max_steps)) & ~cut & (episode[0] < quota)
            cuts += newly.sum()
            episode += (ended & ~cut) | newly
            cut = cut | newly
            if watch is not None:
                watch(env, step, acted.action)
            if device.type != "cpu" and number % SYNC_EVERY:
                continue
            done = episode[0] >= quota
            if bool(done.all()):
                break
            if bool((done | cut).all()):
                obs = tree.to(env.reset(seed + next(rounds)), device)
                cut, length, reset = torch.zeros_like(cut), torch.zeros_like(length), torch.ones_like(reset)
                silent = torch.zeros_like(length)
                memory = agent.begin(obs, collecting=False)
    counted = (torch.arange(most + 1, device=device).unsqueeze(1) < quota) & (lengths > 0)
    if not bool(counted.any()):
        raise EnvError(
            f"{env.id}: no environment answered within {max_steps:,} steps of an evaluation; check that its agents ask "
            "for actions, or raise eval_max_steps"
        )
    reports = {name: column[column.isfinite()] for name, column in zip(names, measures[counted].T)}
    successes = reports.pop(SUCCESS, torch.zeros(0)) > 0
    means = {name: float(column.mean()) for name, column in reports.items() if len(column)}
    found = Evaluation(
        *(returns[counted].tolist(), lengths[counted].tolist(), successes.tolist(), means, int(cuts)),
        players=env.players,
    )
    if found.cut and warn:
        count = f"{found.cut} of {len(found.returns)} episodes"
        messages.warn(
            f"{env.id}: evaluation truncated {count} after {max_steps:,} steps and counted their returns so far; raise "
            "eval_max_steps, or give the environment a time limit"
        )
    return found


class Evaluator:
    """Evaluates the acting policy of a run, in environments that are created at the first evaluation and then kept."""

    def __init__(self, source: Source, parts: Parts) -> None:
        source = source.evaluated
        self.source, self.parts = drawn(source) if parts.settings.run.render else source, parts
        self.env: VectorEnv | None = None
        self._viewer: Viewer | None = None

    def evaluate(
        self, episodes: int, iteration: int, progress: Callable[[], None] | None = None
    ) -> Evaluation:
        """Play `episodes` (0: as configured) with greedy actions and the newest weights; `progress` is called after
        every step."""
        run, policy = self.parts.settings.run, self.parts.acting.policy
        episodes = episodes or run.n_eval_episodes
        num_envs = min(episodes, EVAL_ENVS) if self.source.world is None else episodes
        if policy.device.type == "cuda":
            num_envs = max(num_envs, run.num_envs)  # the shape that is compiled already
        num_envs = self.source.num_envs or num_envs
        if self.env is None or self.env.spec.num_envs != num_envs:
            self.close()
            workers = 0 if run.render else min(run.workers, num_envs)
            self.env = make_vector(
                self.source, num_envs, policy.device, workers, run.compile, run.env_timeout
            )
        self.parts.send_weights()
        seed = self.parts.streams.seed("eval", str(iteration))
        if run.render and self._viewer is None:
            self._viewer = Viewer(self.source.id, frame_rate(self.source))
        viewer = self._viewer
        watch: Watch | None = viewer
        if progress is not None:

            def watch(env: VectorEnv, step: Step, action: Tree) -> None:
                progress()
                if viewer is not None:
                    viewer(env, step, action)

        return run_episodes(policy, self.env, episodes, seed, watch=watch, max_steps=run.eval_max_steps)

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None
        if self.env is not None:
            self.env.close()
            self.env = None
