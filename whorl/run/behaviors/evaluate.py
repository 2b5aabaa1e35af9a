"""Episodes with the policies of several behaviours, in which agents may appear and leave."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from whorl.agents.agent import Agent, Context
from whorl.collect.collector import acting
from whorl.core import messages, tree
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.envs.behaviors import BehaviorEnv
from whorl.envs.make import Source
from whorl.envs.vector import Step
from whorl.run.behaviors.parts import BehaviorParts, seed_of
from whorl.run.evaluate import EVAL_ENVS, Evaluation, Evaluations, Watch
from whorl.settings.run import RunConfig


class BehaviorEvaluator:
    """Evaluates the acting policies of a run, in copies that are created at the first evaluation and then kept."""

    def __init__(self, source: Source, parts: BehaviorParts) -> None:
        self.source, self.parts = source, parts
        self.env: BehaviorEnv | None = None

    def evaluate(
        self, episodes: int, iteration: int, progress: Callable[[], None] | None = None
    ) -> Evaluations:
        """Play `episodes` (0: as configured) with greedy actions and the newest weights; `progress` is called after
        every step."""
        run = self.parts.settings.run
        episodes = episodes or run.n_eval_episodes
        if self.env is None:
            assert self.source.adapter is not None
            self.env = self.source.adapter.behavior_env(self.source, min(episodes, EVAL_ENVS))
        for member in self.parts.members:
            member.parts.send_weights()
        seed = self.parts.streams.seed("eval", str(iteration))
        agents = {member.name: member.parts.acting.policy for member in self.parts.members}
        watch = None if progress is None else lambda *_: progress()
        found = play(agents, self.env, episodes, seed, True, watch, run.eval_max_steps)
        for member in self.parts.members:
            member.counters.evaluated_return = found.behaviors[member.name].mean_return
        return found

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None


def play(
    agents: Mapping[str, Agent],
    env: BehaviorEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    watch: Watch | None = None,
    max_steps: int = RunConfig.eval_max_steps,
    warn: bool = True,
) -> Evaluations:
    """Play until every agent that has appeared has ended its share of `episodes`: those of its copy, where the agents
    of a copy play together.

    Agents that appear in none of the first `max_steps` steps are not waited for. `watch` sees steps of whole
    copies: `terminated` where all agents of a copy are gone, and the sum of their rewards. `warn`: see `run_episodes`.
    """
    obs = env.reset(seed)
    players = {}
    for name, agent in agents.items():
        with acting(agent.device):
            spec = env.specs[name]
            shares = env.copies if env.together else spec.num_envs
            players[name] = _Played(
                *(agent, spec, -(-episodes // shares), obs[name], max_steps), together=spec.num_envs // shares
            )
    generators = {
        name: torch.Generator(agent.device).manual_seed(seed_of(seed, name)) for name, agent in agents.items()
    }
    quota = max(player.quota for player in players.values())
    over = torch.zeros(env.copies, dtype=torch.bool)
    for _ in range(quota * max_steps):
        actions = {}
        for name, player in players.items():
            with acting(player.agent.device):
                actions[name] = player.act(generators[name], deterministic)
        answers = env.step(actions)
        for name, player in players.items():
            with acting(player.agent.device):
                player.answer(answers[name])
        if watch is not None:
            reset, over = over, env.ended()
            reward = torch.stack([one.reward.view(env.copies, -1).sum(1) for one in answers.values()]).sum(0)
            watch(env, Step(None, reward, over, torch.zeros_like(over), reset), actions)
        if all(player.over for player in players.values()):
            break
    cut = sum(player.cut for player in players.values())
    if cut and warn:
        messages.warn(
            f"{env.id}: evaluation truncated {cut} episodes after {max_steps:,} steps and counted their returns so "
            "far; raise eval_max_steps, or give the environment a time limit"
        )
    return Evaluations.of({name: player.evaluation() for name, player in players.items()})


class _Played:
    """Episodes of one behaviour: each row plays `quota`, then keeps on acting; `together` rows play each of them."""

    def __init__(
        self, agent: Agent, spec: Spec, quota: int, obs: Tree, max_steps: int, together: int
    ) -> None:
        self.agent, self.quota, self.max_steps, self.together = agent, quota, max_steps, together
        count = spec.num_envs
        self.obs = tree.to(obs, agent.device)
        self.reset = torch.ones(count, dtype=torch.bool, device=agent.device)
        self.memory = agent.begin(self.obs, collecting=False)
        self.total = torch.zeros(count, dtype=torch.float64)
        self.length = torch.zeros(count, dtype=torch.int64)
        self.episodes = torch.zeros(count, dtype=torch.int64)
        self.appeared = torch.zeros(count, dtype=torch.bool)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.successes: list[bool] = []
        self.cut = 0

    def act(self, generator: torch.Generator, greedy: bool) -> Tree:
        self.acted = self.agent.act_tracked(
            self.obs, self.memory, Context(self.reset, generator, greedy=greedy)
        )
        return self.acted.action

    def answer(self, step: Step) -> None:
        device, waits = self.agent.device, step.waits
        assert waits is not None
        before = tree.clone(self.obs) if self.agent.tracks else self.obs
        held = self.agent.kept(self.memory)
        self.obs, opens = tree.to(step.obs, device), step.reset.to(device, copy=True)
        after = self.agent.follow(
            self.acted.memory, before, self.acted.action, step.reward.to(device), self.obs, opens
        )[0]
        waiting = waits.to(device)
        self.memory = tree.where(waiting, held, after)
        self.reset = torch.where(waiting, self.reset, opens)
        self._count(step, ~waits & ~step.reset)

    def _count(self, step: Step, real: Tensor) -> None:
        """Count what happened in rows that made a step."""
        self.appeared |= real
        counted = real & (self.episodes < self.quota)
        self.total += torch.where(counted, step.reward.double(), 0.0)
        self.length += counted
        cut = counted & (self.length >= self.max_steps) & ~(step.terminated | step.truncated)
        for row in (counted & (step.terminated | step.truncated | cut)).nonzero().flatten().tolist():
            self.returns.append(float(self.total[row]))
            self.lengths.append(int(self.length[row]))
            # A cut episode continues in the environment, so its row plays no further one.
            self.episodes[row] = self.quota if cut[row] else self.episodes[row] + 1
            self.cut += int(cut[row])
            if step.measures is not None and not cut[row]:
                self._measure(step.measures[row])
            self.total[row], self.length[row] = 0.0, 0

    def _measure(self, measures: Tensor) -> None:
        if bool(measures.isfinite().all()) and len(measures):
            self.successes.append(bool(measures[0]))

    def evaluation(self) -> Evaluation:
        """The episodes that have ended; one of return nan where no agent appeared."""
        if not self.returns:
            return Evaluation([math.nan], [0])
        return Evaluation(self.returns, self.lengths, self.successes, cut=self.cut, players=self.together)

    @property
    def over(self) -> bool:
        """Whether all rows whose agents have appeared have played their episodes."""
        return bool(self.returns) and bool((self.episodes[self.appeared] >= self.quota).all())
