"""A run with several behaviours: one environment, and for each behaviour an agent, a replay buffer and a learner.

    for each step of the environment:
        actions = each behaviour's agent acts
        each behaviour stores what the environment answers
        a behaviour whose rollout is complete learns from it

Rollouts may have different lengths. An iteration ends when all end together, so that nothing is under way between two
iterations, and one checkpoint holds all behaviours as they were at the same step.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from whorl.agents.agent import Agent, Context
from whorl.collect.collector import acting
from whorl.collect.episodes import Episode
from whorl.collect.waiting import WaitingCollector
from whorl.core import tree
from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.core.goals import GoalRewards
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.experience import Store
from whorl.distributed.remote import Notify
from whorl.envs.behaviors import BehaviorEnv
from whorl.envs.make import Source, find
from whorl.envs.vector import Step, VectorEnv
from whorl.explore.noise import random_action
from whorl.run.build import Needs, Parts, build, choose_device, reset_period
from whorl.run.checkpointing import Checkpointing, earlier, find_checkpoint, load_weights
from whorl.run.evaluate import EVAL_ENVS, Evaluation, Evaluations, Watch
from whorl.run.loop import Counters, Loop
from whorl.run.progress import Progress
from whorl.run.trainer import Trainer
from whorl.run.trust import own_code
from whorl.settings.behaviors import BEHAVIORS, BehaviorSettings
from whorl.settings.run import RunConfig
from whorl.state import checkpoint
from whorl.state.runfolder import resolve_run
from whorl.state.streams import Streams


class BehaviorView(VectorEnv):
    """One behaviour of an environment that is stepped for all of them at once, outside of the collectors."""

    waits = True

    def __init__(self, env: BehaviorEnv, name: str) -> None:
        self.id, self.spec, self.snapshots = env.id, env.specs[name], env.snapshots
        self.obs: Tree = None
        """the newest observations"""

    def reset(self, seed: int) -> Tree:
        return self.obs

    def step(self, action: Tree) -> Step:
        raise NotImplementedError("all behaviours are stepped together")

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        return self.obs

    def close(self) -> None: ...


@dataclass
class Member:
    """One behaviour of a run."""

    name: str
    view: BehaviorView
    parts: Parts
    counters: Counters
    loop: Loop
    checkpointing: Checkpointing

    @property
    def collector(self) -> WaitingCollector:
        collector = self.parts.acting.collector
        assert isinstance(collector, WaitingCollector)
        return collector


class SharedCollector:
    """The environment that all behaviours collect from."""

    def __init__(self, env: BehaviorEnv, members: list[Member]) -> None:
        self.env, self.members = env, members

    def reset(self, seed: int) -> None:
        """Reset every copy; the next rollouts start there."""
        self._begin(self.env.reset(seed))
        for member in self.members:
            member.collector.reset(seed)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot of the environment; the collectors have their own state."""
        self._begin(self.env.restore(snapshot))

    def _begin(self, obs: Mapping[str, Tree]) -> None:
        for member in self.members:
            member.view.obs = obs[member.name]

    def step(self) -> None:
        """One step of all behaviours."""
        actions = {}
        for member in self.members:
            collector = member.collector
            with acting(collector.agent.device):
                actions[member.name] = collector.act()
        answers = self.env.step(actions)
        for member in self.members:
            with acting(member.collector.agent.device):
                member.collector.answer(answers[member.name])


@dataclass
class SharedActing:
    """Where rollouts are collected; the fields are those of `whorl.run.build.Acting` that a run asks for."""

    collector: SharedCollector
    env: BehaviorEnv
    dashboard: str = ""
    workers: int = 0


class Agents:
    """What a run asks of its agent, of all of them."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    @property
    def updates(self) -> int:
        return sum(member.parts.agent.updates for member in self._members)

    @property
    def goal_rewards(self) -> GoalRewards | None:
        return next((found for member in self._members if (found := member.parts.agent.goal_rewards)), None)

    def replay_bytes(self) -> int:
        return sum(member.parts.agent.replay_bytes() for member in self._members)

    def pictures(self) -> dict[str, Tensor]:
        return {
            f"{member.name}/{name}": picture
            for member in self._members
            for name, picture in member.parts.agent.pictures().items()
        }

    def __getattr__(self, name: str) -> Any:
        raise WhorlError(
            f"a run of several behaviours has no one agent with {name!r}; use trainer.behaviors[NAME].parts.agent"
        )


class Learners:
    """What a run asks of its learner, of all of them."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    def check_finite(self) -> None:
        for member in self._members:
            member.parts.learner.check_finite()

    def means(self) -> dict[str, float]:
        return {
            f"{member.name}/{name}": value
            for member in self._members
            for name, value in member.parts.learner.means().items()
        }


@dataclass
class Team:
    """The parts of a run with several behaviours, as `whorl.run.build.Parts` are of one."""

    settings: BehaviorSettings
    device: torch.device
    streams: Streams
    """of the environment and evaluations; each behaviour has its own"""
    env: BehaviorEnv
    members: list[Member]
    map: None = None

    def __post_init__(self) -> None:
        self.agent, self.learner = Agents(self.members), Learners(self.members)
        self.acting = SharedActing(SharedCollector(self.env, self.members), self.env)

    @property
    def reset_period(self) -> int:
        """Iterations between resets of environments that can't be snapshotted; 0: theirs can."""
        return 0 if self.env.snapshots else reset_period(self.settings.run)

    def close(self) -> None:
        for member in self.members:
            member.parts.close()
        self.env.close()


def build_team(
    source: Source,
    settings: BehaviorSettings,
    needs: Needs,
    notify: Notify,
    on_episode: Callable[[Episode], None],
    on_rollout: Callable[[Batch], None],
) -> Team:
    """Create the environment and the parts of each behaviour."""
    assert source.adapter is not None
    env = source.adapter.behavior_env(source)
    members: list[Member] = []
    try:
        for name, own in settings.behaviors.items():
            view = BehaviorView(env, name)
            # Agents of the same kind must differ in their first weights and their exploration.
            seeded = replace(own, run=replace(own.run, seed=seed_of(own.run.seed, name), workers=0))
            try:
                parts = build(find(view), seeded, needs, notify)
            except ConfigError as error:
                raise ConfigError(f"behaviour {name!r}: {error.message}") from None
            counters = Counters()
            loop = Loop(parts, counters, on_episode, on_rollout)
            member = Member(name, view, parts, counters, loop, Checkpointing(parts, counters))
            member.collector.driven = True
            members.append(member)
    except BaseException:
        for member in members:
            member.parts.close()
        env.close()
        raise
    run = settings.run
    return Team(settings, choose_device(run.device), Streams(run.seed), env, members)


def seed_of(seed: int, name: str) -> int:
    """The seed of one behaviour's weights, exploration and replay."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class TeamLoop:
    """Runs iterations of all behaviours and counts them; as `whorl.run.loop.Loop` does for one."""

    def __init__(self, team: Team, counters: Counters) -> None:
        self.team, self.counters = team, counters
        self.progress: Progress | None = None
        self.whole = True

    def watch(self, progress: Progress | None) -> None:
        """Report to `progress` from now on."""
        self.progress = progress
        for member in self.team.members:
            member.parts.agent.on_optimizer_step = None if progress is None else progress.updated

    def iterate(self, progress: float) -> dict[str, Any]:
        """Collect until all rollouts end together, each with the updates that are due after it; the metrics."""
        team, counters = self.team, self.counters
        began, updating = time.perf_counter(), 0.0
        shared, period = team.acting.collector, team.reset_period
        cut = period > 0 and (counters.iteration + 1) % period == 0
        steps, episodes, earned = self._sums()
        total = team.settings.run.num_steps
        for number in range(1, total + 1):
            for member in team.members:
                if (number - 1) % member.collector.steps == 0:
                    member.loop.start(progress)
                    with acting(member.collector.agent.device):
                        member.collector.open()
            shared.step()
            if self.progress is not None:
                self.progress.collected(number / total)
            for member in team.members:
                if number % member.collector.steps == 0:
                    self.whole = False
                    collected, _ = member.loop.finish(cut and number == total)
                    updating += time.perf_counter() - collected
        after = self._sums()
        counted = dict(
            zip(("steps", "episodes", "return"), (after[0] - steps, after[1] - episodes, after[2] - earned))
        )
        counters.count({**counted, "length": 0.0}, ())
        self.whole = True
        if cut:
            counters.resets += 1
            shared.reset(team.streams.seed("env", str(counters.resets)))
        row = self._row()
        over = time.perf_counter()
        row["time/update"] = updating
        row["time/collect"] = over - began - updating
        row["time/steps_per_second"] = counted["steps"] / (over - began)
        if self.progress is not None:
            self.progress.next(row["time/collect"], row["time/update"])
        return row

    def row_is_due(self) -> bool:
        """Whether the metrics of this iteration are written, however long the run continues."""
        run, counters = self.team.settings.run, self.counters
        return counters.passed(run.log_freq) or (run.eval and counters.passed(run.eval_freq))

    def _sums(self) -> tuple[int, int, float]:
        """Steps and episodes of all behaviours, and the sum of returns since rows were written."""
        counts = [member.counters for member in self.team.members]
        return (
            sum(one.steps for one in counts),
            sum(one.episodes for one in counts),
            sum(one.new_return for one in counts),
        )

    def _row(self) -> dict[str, Any]:
        """The counters of the run, and the metrics of each behaviour with its name before theirs."""
        counters, due = self.counters, self.row_is_due()
        row: dict[str, Any] = {
            "steps": counters.steps,
            "iteration": counters.iteration,
            "episodes": counters.episodes,
        }
        for member in self.team.members:
            own = member.counters.row()
            if due:
                own |= member.loop.metrics()
                member.counters.clear_new()
            row |= {f"{member.name}/{name}": value for name, value in own.items() if name != "iteration"}
        return row


class Stores:
    """The files of all replay buffers."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores

    def names(self) -> list[str]:
        return [name for store in self._stores for name in store.names()]

    def sweep(self, needed: Any) -> None:
        for store in self._stores:
            store.sweep(needed)

    def close(self) -> None:
        for store in self._stores:
            store.close()


class TeamCheckpointing(Checkpointing):
    """Checkpoints of all behaviours together."""

    def __init__(self, team: Team, counters: Counters) -> None:
        super().__init__(team, counters)  # type: ignore[arg-type]  # it has the parts that saving needs
        self.team = team

    def open(self, run_dir: Path) -> None:
        if self.run_dir is None:
            self.run_dir, self.code = run_dir, own_code(self.parts.settings)
            stores = [self._open_store(run_dir / checkpoint.ROWS, member) for member in self.team.members]
            found = [store for store in stores if store is not None]
            self.store = Stores(found) if found else None
            self._sweep()

    def _open_store(self, rows: Path, member: Member) -> Store | None:
        """The files of one replay buffer, in a folder of its own."""
        folder, keep = rows / quote(member.name, safe=" "), self.team.settings.run.save_model
        if member.parts.agent.off_policy:
            rows.mkdir(exist_ok=True)
        member.checkpointing.store = member.parts.experience.open_store(folder, keep)
        return member.checkpointing.store

    def start_from(self, run: str, strict: bool) -> list[str]:
        assert self.run_dir is not None
        found = find_checkpoint(resolve_run(run, Path(self.team.settings.run.runs)))
        messages = []
        for member in self.team.members:
            own = of_behavior(found, member.name)
            messages.append(load_weights(member.parts.agent, own, strict))
            before: dict[str, Any] = own.state["counters"] if own.state else {"steps": 0}
            steps = before["steps"] + before.get("earlier", {}).get("steps", 0)
            member.counters.earlier = {"steps": float(steps)}
            if member.checkpointing.store is not None:
                messages.append(member.checkpointing.take_rows(own, self.run_dir, strict))
        with checkpoint.reading(found.folder, checkpoint.METADATA):
            self.counters.earlier = earlier(found)
        return [message for message in messages if message]

    def state(self, restart: bool = False) -> dict[str, Any]:
        team = self.team
        return {
            BEHAVIORS: {member.name: member.checkpointing.state(restart) for member in team.members},
            "env": team.env.snapshot() if team.env.snapshots and not restart else {},
            "streams": team.streams.state_dict(),
            "counters": self.counters.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        team, shared = self.team, self.team.acting.collector
        team.streams.load_state_dict(state["streams"])
        self.counters.load_state_dict(state["counters"])
        if state["env"]:
            shared.restore(state["env"])
        else:
            shared.reset(team.streams.seed("env", str(self.counters.resets)))
        for member in team.members:
            member.checkpointing.load_state(state[BEHAVIORS][member.name])

    def policy(self) -> dict[str, Any]:
        return {BEHAVIORS: {member.name: member.checkpointing.policy() for member in self.team.members}}

    def normalizer(self) -> dict[str, Any]:
        return {
            f"{member.name}.{key}": values
            for member in self.team.members
            for key, values in member.checkpointing.normalizer().items()
        }

    def _forget_episodes(self) -> None:
        self.counters.resets += 1
        for member in self.team.members:
            member.collector.episode_statistics.forget()
            member.parts.agent.forget()


def of_behavior(found: checkpoint.Loaded, name: str) -> checkpoint.Loaded:
    """A checkpoint of several behaviours, as one of a run with this one alone."""
    policies = found.policy.get(BEHAVIORS, {})
    if name not in policies:
        has = ", ".join(policies) or "one policy"
        raise CheckpointError(
            f"{found.folder} has no behaviour {name!r}, whose weights are wanted; it has {has}"
        )
    state = found.state[BEHAVIORS][name] if found.state else {}
    return replace(found, policy=policies[name], state=state)


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
            # An episode that was cut goes on in the environment, so that its row plays no other one.
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
        warnings.warn(
            f"{env.id}: evaluation cut {cut} episodes after {max_steps:,} steps and counted their returns so far; "
            "raise eval_max_steps, or give the environment a time limit",
            stacklevel=2,
        )
    return Evaluations.of({name: player.evaluation() for name, player in players.items()})


def check_behaviors(source: Source, steps: int = 200) -> list[str]:
    """What is wrong with an environment of several agents, as far as random actions show it; see `whorl check`."""
    try:
        first, second = (_try_out(source, steps) for _ in range(2))
    except WhorlError as error:
        return [error.message]
    if not all(math.isfinite(reward) for _, reward in first):
        return ["a reward is not a finite number; find the division or root that makes it"]
    if any(math.isnan(seen) for seen, _ in first):
        return ["an observation is NaN; find the division or root that makes it"]
    if first != second:
        return [
            "reset(seed=0) and the same actions lead to other episodes; draw all random numbers from the seed"
        ]
    return []


def _try_out(source: Source, steps: int) -> list[tuple[float, float]]:
    """Sums of observations and rewards of one copy, step by step, with random actions."""
    assert source.adapter is not None
    env, found = source.adapter.behavior_env(source, 1), []
    generator = torch.Generator().manual_seed(0)
    try:
        obs = env.reset(0)
        for _ in range(steps):
            answers = env.step(
                {name: random_action(spec, obs[name], generator) for name, spec in env.specs.items()}
            )
            obs = {name: answer.obs for name, answer in answers.items()}
            seen = sum(float(leaf.double().sum()) for one in obs.values() for leaf in tree.leaves(one))
            found.append((seen, sum(float(answer.reward.sum()) for answer in answers.values())))
    finally:
        env.close()
    return found


class TeamEvaluator:
    """Evaluates the acting policies of a run, in copies that are created at the first evaluation and then kept."""

    def __init__(self, source: Source, team: Team) -> None:
        self.source, self.team = source, team
        self._env: BehaviorEnv | None = None

    def evaluate(
        self, episodes: int, iteration: int, progress: Callable[[], None] | None = None
    ) -> Evaluations:
        """Play `episodes` (0: as configured) with greedy actions and the newest weights; `progress` is called after
        every step."""
        run = self.team.settings.run
        episodes = episodes or run.n_eval_episodes
        if self._env is None:
            assert self.source.adapter is not None
            self._env = self.source.adapter.behavior_env(self.source, min(episodes, EVAL_ENVS))
        for member in self.team.members:
            member.parts.send_weights()
        seed = self.team.streams.seed("eval", str(iteration))
        agents = {member.name: member.parts.acting.policy for member in self.team.members}
        watch = None if progress is None else lambda *_: progress()
        found = play(agents, self._env, episodes, seed, True, watch, run.eval_max_steps)
        for member in self.team.members:
            member.counters.evaluated_return = found.behaviors[member.name].mean_return
        return found

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


class BehaviorTrainer(Trainer):
    """A `Trainer` of several behaviours in one environment. Metrics begin with the name of their behaviour."""

    settings: BehaviorSettings  # type: ignore[assignment]

    @property
    def behaviors(self) -> dict[str, Member]:
        """Each behaviour with its agent, replay buffer and counters, from `build` on."""
        team: Any = self.parts
        return {member.name: member for member in team.members}

    @property
    def replay_bytes(self) -> int:
        self.build()
        return self.agent.replay_bytes()

    def returns(self) -> dict[str, float]:
        return {name: member.counters.mean_return for name, member in self.behaviors.items()}

    def load_weights(self, run: str | Path, strict: bool = False) -> None:
        found = find_checkpoint(resolve_run(run, Path(self.settings.run.runs)))
        for name, member in self.behaviors.items():
            message = load_weights(member.parts.agent, of_behavior(found, name), strict)
            if message:
                warnings.warn(f"{name}: {message}", stacklevel=2)

    def _assemble(self, needs: Needs) -> None:
        for name, one in self.settings.behaviors.items():
            if one.run.dataset:
                raise ConfigError(
                    f"behaviour {name!r} has a dataset, but several behaviours learn online; leave it out"
                )
        team: Any = build_team(
            self.source, self.settings, needs, self._notify, self._on_episode, self._on_rollout
        )
        self._parts = team
        self.checkpointing = TeamCheckpointing(team, self.counters)
        evaluator: Any = TeamEvaluator(self.source, team)
        loop: Any = TeamLoop(team, self.counters)
        self._evaluator, self.loop = evaluator, loop
