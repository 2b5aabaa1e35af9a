"""Every agent in tiny worlds (`worlds.py`) whose value, action or policy is known exactly and a typical mistake misses.

Every agent learns there with the rule and the options of its name, tiny networks and large steps. The common suite has
an agent of each kind in each world; the full one all agents.
"""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import CHOICE, PUSH, Arms, Bounds, Cue, Ends, Linear, Lottery, Seam, SoftPush, World

from whorl.agents.agent import Agent, Context
from whorl.agents.estimates import distribution
from whorl.collect.collector import LocalCollector
from whorl.conformance import Run, Subject
from whorl.conformance.subjects import settings_of
from whorl.core.spec import empty_action, to_env
from whorl.data.batch import POLICY, STREAMS, Batch
from whorl.settings.presets import preset_names

torch.set_num_threads(1)

GAMMA = 0.8
ROLLOUT = {"num_envs": 8, "num_steps": 16, "actors": 0}
TINY: dict[str, Any] = {
    "gamma": GAMMA,
    "hidden_sizes": (16,),
    "actor_hidden_sizes": (16,),
    "critic_hidden_sizes": (16,),
    "activation": "elu",
    "memory_size": 8,
    "optimizer": "Adam",
    "adam_eps": 1e-8,
    "learning_rate": 1e-2,
    "actor_lr": 1e-2,
    "critic_lr": 1e-2,
    "lr_schedule": "linear",
    "max_grad_norm": 0.0,
    "normalize_obs": False,
    "normalize_reward": False,
    "batch_size": 64,
    "chunk_length": 8,
    "lookahead": 0,
    # With replay
    "buffer_size": 4096,
    "learning_starts": 0,
    "random_steps": 0,
    "updates_per_step": 0.5,
    "n_step": 3,
    "tau": 0.05,
    "target_update_interval": 1,
    "policy_delay": 1,
    "sequence_length": 8,
    "burn_in": 0,
    "sequence_stride": 8,
    # Values on their own scale, without a bonus for entropy and without a bias
    "v_min": -1.0,
    "v_max": 11.0,
    "rescale_values": False,
    "munchausen": 0.0,
    "alpha": 0.0,
    "tune_alpha": False,
    "top_quantiles_to_drop": 0,
    "critic_weight_decay": 0.0,
    "target_noise": 0.0,
    "renorm_warmup": 200,
    # One policy of a family, which follows the environment's reward alone, as do those with a bonus of no weight
    "num_policies": 1,
    "max_beta": 0.0,
    "max_gamma": GAMMA,
    "min_gamma": GAMMA,
    "episodic": {"capacity": 16, "hidden_sizes": (16,), "batch_size": 32},
    "rnd": {"weight": 0.0, "hidden_sizes": (16,), "batch_size": 32},
    "icm": {"weight": 0.0, "hidden_sizes": (16,), "batch_size": 32},
}
"""What makes learning short; an agent gets the settings that it has"""

VALUES = (
    *("dqn", "double_dqn", "dueling_dqn", "prioritized_dqn", "noisy_dqn", "apex_dqn", "c51", "c51_dqn"),
    *("rainbow", "qr_dqn", "iqn", "btr"),
)
ACTORS = ("ddpg", "ddpg_lillicrap", "td3", "sac", "tqc", "redq", "droq", "crossq", "option_critic")
REMEMBERING_VALUES = ("drqn", "r2d2")
REMEMBERING_ACTORS = ("rdpg", "rtd3", "rsac", "rsac_share")
POLICIES = ("a2c", "a3c", "actor_critic", "impala", "ppo", "ppg", "reinforce", "reinforce_baseline", "trpo")
CURIOUS = {"ppo_icm": "icm", "ppo_rnd": "rnd"}
FAMILIES = ("agent57", "ngu")
"""these and the curious learn the values of other rewards too: algorithms/test_policy_families.py, tests/components"""
ON_POLICY = (*POLICIES, "pqn", *CURIOUS)
PUSHING = (*ACTORS, *REMEMBERING_ACTORS)
ALL = (*VALUES, *REMEMBERING_VALUES, *FAMILIES, *ON_POLICY, *PUSHING)
ELSEWHERE = ("bc", "cql", "iql", "td3_bc", "fast_td3", "flash_sac")
"""these learn from datasets or in large batches: test_offline_learning.py, test_off_policy.py"""
ROLLOUTS = {
    "ppo": 30,
    "ppo_icm": 60,
    "ppo_rnd": 60,
    "ppg": 30,
    "pqn": 60,
    **dict.fromkeys(("a2c", "a3c", "actor_critic", "impala"), 120),
}
"""rollouts that an on-policy agent learns from; others make 120 or, with replay, about 300 updates from 8 rollouts"""

OWN = {
    "crossq": {"updates_per_step": 1.0},
    "option_critic": {
        "updates_per_step": 1.0,
        "num_options": 2,
        "termination_lr": 1e-2,
        "deliberation_cost": 0.0,
    },
}
"""settings of one agent: CrossQ's normalisation needs more updates to settle, options share the experience"""


def test_every_agent_is_among_them() -> None:
    assert sorted((*ALL, *ELSEWHERE)) == sorted(preset_names())


def agents(names: Iterable[str], common: tuple[str, ...]) -> list[Any]:
    """Parameters: those in `common` are part of the common suite, the others of the full one."""
    return [pytest.param(name, marks=() if name in common else pytest.mark.full) for name in names]


def action_of(name: str) -> Any:
    return PUSH if name in PUSHING else CHOICE


def taught(name: str, world: World, rollouts: int = 8, random: bool = True, **settings: Any) -> Any:
    """An agent after learning in a world; with replay from random actions, unless it is to act by itself."""
    if name in ON_POLICY:
        rollouts, random = ROLLOUTS.get(name, 120), False
    bonus = "episodic" if name in FAMILIES else CURIOUS.get(name, "")
    known = settings_of(name) | {*ROLLOUT, bonus}
    wanted = {**TINY, **ROLLOUT, **OWN.get(name, {}), **settings}
    run = Run(Subject(name, world.spec, {key: value for key, value in wanted.items() if key in known}))
    collector = LocalCollector(world, run.agent, ROLLOUT["num_steps"], torch.Generator().manual_seed(1))
    collector.reset(0)
    for number in range(rollouts):
        run.agent.progress.fill_(number / rollouts)
        run.feed([collector.collect(random=random)])
    return run.agent


def states(agent: Agent, obs: Tensor) -> Any:
    """Rows of observations [T, B, columns] that start an episode."""
    none = torch.zeros(obs.shape[:2])
    reset = none > 0
    reset[0] = True
    last = {"action": empty_action(agent.spec.action, tuple(none.shape)), "reward": none}
    last |= {STREAMS: {stream.name: none for stream in agent.spec.streams}, POLICY: none.long()}
    return Batch(obs, reset, {}, none, none, none, none, last=last).now


@torch.no_grad()
def values(agent: Any, obs: Tensor) -> Tensor:
    """V [T, B] of the environment's reward"""
    found = (getattr(agent, "value", None) or agent.critic)(states(agent, obs))
    if not agent.spec.streams:
        return found
    return found[..., 0].amax(-1) if agent.off_policy else found[..., 0]


def answers(agent: Agent, obs: Tensor) -> Tensor:
    """Greedy actions [B, ...], as the environment takes them, at first observations [B, columns]."""
    count = len(obs)
    context = Context(torch.ones(count, dtype=torch.bool), torch.Generator(), greedy=True)
    with torch.no_grad():
        acted = agent.act_tracked(obs, agent.begin(obs, collecting=False), context)
    return to_env(agent.spec.action, acted.action)


def earned(agent: Agent, world: World, steps: int = 60) -> float:
    """Mean return of a greedy agent, whose memory goes on from one episode to the next unless it resets it."""
    obs, count = world.reset(7), world.spec.num_envs
    memory, reset = agent.begin(obs, collecting=False), torch.ones(count, dtype=torch.bool)
    total, episodes = 0.0, 0
    for _ in range(steps):
        with torch.no_grad():
            acted = agent.act_tracked(obs, memory, Context(reset, torch.Generator(), greedy=True))
            before, step = obs.clone(), world.step(acted.action)
            row = (before, acted.action, step.reward, step.obs, step.reset)
            memory, obs, reset = agent.follow(acted.memory, *row)[0], step.obs, step.reset
        total, episodes = total + float(step.reward.sum()), episodes + int(step.terminated.sum())
    return total / episodes


BOTH = torch.eye(2)
HERE = torch.ones(1, 1, 1)


@pytest.mark.parametrize(
    "name", agents((name for name in ALL if name != "reinforce"), ("r2d2", "ppo", "ppo_rnd"))
)
def test_a_time_limit_is_not_an_end(name: str) -> None:
    """V is 5 before a time limit (at most 2.4 if that ends it), and 1 before an end (5 if nothing does)."""
    found = values(taught(name, Ends(action_of(name))), BOTH[None])[0]
    limited, ended = found.tolist()
    assert limited == pytest.approx(1 / (1 - GAMMA), abs=1.0)
    assert ended == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("name", agents(ALL, ("dqn", "pqn", "drqn", "a2c", "ppo", "reinforce", "td3")))
def test_returns_do_not_cross_the_end_of_an_episode(name: str) -> None:
    """What is refused now is paid tenfold in the next episode, which nobody is to wait for."""
    agent = taught(name, Seam(action_of(name)))
    wanted = 0.0 if action_of(name) is CHOICE else -1.0
    assert answers(agent, BOTH)[0].item() == pytest.approx(wanted, abs=0.5)
    if name != "reinforce":
        assert values(agent, BOTH[None])[0, 0].item() == pytest.approx(1.0, abs=0.25)


WEIGHTED = {
    "prioritized": True,
    "priority_alpha": 1.0,
    "priority_beta": 1.0,
    "priority_beta_steps": 0,
    "loss": "squared",
    "n_step": 1,
}


@pytest.mark.parametrize("name", agents((*VALUES, *ACTORS), ("dqn", "td3")))
def test_what_is_sampled_more_often_counts_less(name: str) -> None:
    """A lottery's value is 1; 2.5 where winners are replayed in proportion to their errors without weights."""
    quick = (
        {"learning_rate": 3e-2} if name in ("qr_dqn", "btr") else {}
    )  # each of many quantiles has far to go
    agent = taught(name, Lottery(action_of(name)), 10, **WEIGHTED, **quick)
    assert values(agent, HERE).item() == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("name", agents(("sac", "redq", "droq"), ("sac",)))
def test_a_soft_policy_chooses_in_proportion_to_the_exponential_of_values(name: str) -> None:
    rewards, alpha = (0.0, 0.5, 1.0), 0.5
    agent = taught(name, Arms(rewards), 10, alpha=alpha)
    found = distribution(agent, states(agent, HERE)).probs[0, 0]  # type: ignore[attr-defined]
    wanted = (torch.tensor(rewards) / alpha).softmax(-1)  # .09, .24, .67
    torch.testing.assert_close(found.detach(), wanted, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "name", agents(("sac", "tqc", "redq", "droq", "crossq", "rsac", "rsac_share"), ("sac",))
)
def test_a_soft_policy_spreads_as_the_temperature_says(name: str) -> None:
    """The best soft policy is tanh(N(0.4, 0.6)) itself."""
    agent = taught(
        name, SoftPush(0.5, 0.4, 0.6), alpha=0.5, critic_hidden_sizes=(32, 32), updates_per_step=0.7
    )
    found = distribution(agent, states(agent, HERE)).before  # type: ignore[attr-defined]
    assert found.mean.item() == pytest.approx(0.4, abs=0.15)
    assert found.log_std.exp().item() == pytest.approx(0.6, abs=0.12)


WIDE = {
    "critic_hidden_sizes": (32, 32),
    "updates_per_step": 0.9,
    "lr_schedule": "constant",
    # A critic that is slower than its actor sends that to a bound, where its tanh hardly moves.
    "actor_lr": 3e-3,
    "critic_lr": 2e-2,
}


@pytest.mark.parametrize("name", agents((*PUSHING, *POLICIES), ("ddpg", "sac", "ppo")))
def test_the_best_action_within_uneven_bounds_is_reached(name: str) -> None:
    """1.5 in [-0.5, 2]."""
    settings = {"log_std_init": -1.0, "critic_lr": 2e-2} if name in POLICIES else WIDE
    longer = {"updates_per_step": 2.0} if name == "droq" else {}  # dropout makes its critics slower still
    agent = taught(name, Bounds(), **{**settings, **longer})
    assert answers(agent, HERE[0]).item() == pytest.approx(1.5, abs=0.2)


@pytest.mark.parametrize("name", agents(("ddpg", "ddpg_lillicrap", "td3"), ("td3",)))
def test_the_gain_of_a_linear_quadratic_problem_is_found(name: str) -> None:
    """By the Riccati equation 1.11; 0 if the next state is not looked at."""
    settings = {"critic_hidden_sizes": (32, 32), "updates_per_step": 0.7, "batch_size": 128, "n_step": 1}
    agent = taught(name, Linear(), 10, **settings)
    left, right = answers(agent, torch.tensor([[-0.5], [0.5]])).flatten().tolist()
    assert left - right == pytest.approx(Linear.gain(GAMMA), abs=0.15)


RECALLING = (
    *REMEMBERING_VALUES,
    *FAMILIES,
    *REMEMBERING_ACTORS,
    "ppo",
    "ppg",
    "a2c",
    "impala",
    "reinforce_baseline",
)
CUED = {"batch_size": 16, "updates_per_step": 0.3, "actor_lr": 3e-3}
CUED_POLICY = {"memory": "lstm", "critic_lr": 2e-2}


@pytest.mark.parametrize("stale", [False, True], ids=["in-time", "stale"])
@pytest.mark.parametrize("name", agents(RECALLING, ("r2d2", "ppo")))
def test_a_cue_is_remembered_until_the_end_of_its_episode_and_no_longer(name: str, stale: bool) -> None:
    """A known cue is worth 1; to guess one that was to be forgotten is worth 1/2 by choice, nothing by a push."""
    settings = CUED_POLICY if name in POLICIES else CUED
    agent = taught(name, Cue(action_of(name), stale), 24 if name == "ngu" else 12, **settings)
    found = earned(agent, Cue(action_of(name), stale))
    if not stale:
        assert found > 0.9
    else:
        assert found < (0.7 if action_of(name) is CHOICE else 0.3)


def test_what_another_policy_did_is_corrected_by_v_trace() -> None:
    """A uniform policy earns 1 with one of two choices: V is 1 to a policy that has learned it, 1/2 uncorrected."""
    world = Arms((0.0, 1.0))
    known = settings_of("impala") | {*ROLLOUT}
    given = {key: value for key, value in {**TINY, **ROLLOUT, "critic_lr": 2e-2}.items() if key in known}
    subject = Subject("impala", world.spec, given)
    run = Run(subject)
    rollouts = subject.rollouts(run.agent, 4, world)  # type: ignore[arg-type]
    for number in range(120):
        run.feed([rollouts[number % 4]])
    assert answers(run.agent, HERE[0]).item() == 1
    assert values(run.agent, HERE).item() == pytest.approx(1.0, abs=0.1)
