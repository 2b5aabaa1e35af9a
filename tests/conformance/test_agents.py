"""Every update rule × every check, and four toy agents; presets and components are at least built and updated."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from toys import TOYS, documented_metrics

from whorl import conformance
from whorl.agents.families import OffPolicyConfig
from whorl.conformance import ACTIONS, CHECKS, MEMORIES, OBSERVATIONS, Subject
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete, TupleSpec
from whorl.settings.presets import algorithm_class, load_preset, preset_layers, preset_names

SETTINGS = {name: {"updates_per_step": 0.05} for name in TOYS if name != "toy_policy_gradient"}
"""So many updates that the checks see some"""
SETTINGS["flash_sac"] = {"v_min": -10.0, "v_max": 10.0}  # the checks have values of 5, which is its last atom


def rules() -> list[str]:
    """One name for each update rule: the preset named like its file, else the first."""
    found: dict[str, str] = {}
    for name in preset_names():
        rule = load_preset(name)["rule"]
        if rule not in found or rule.split(".")[-2] == name:
            found[rule] = name
    return sorted(found.values())


RULES = [*rules(), *TOYS]
SOFT = ("sac", "tqc")
"""Rules that take mixed actions with bounds only; the others have them as trees"""
CELLS = list(product(OBSERVATIONS, MEMORIES, ACTIONS))
COMMON = [
    ("vector", "none", "discrete"),
    ("vector", "none", "continuous"),
    ("image", "none", "continuous"),
    ("image", "none", "discrete"),
    ("dict", "none", "continuous"),
    ("dict", "none", "masked"),
]
ON_POLICY = [("dict", "gru", "masked"), ("vector", "lstm", "multi-discrete")]
TREES = {
    rule: [("vector", "none", "tree"), ("dict", "gru", "masked-tree")]
    for rule in ("a2c", "impala", "ppg", "ppo", "reinforce", "trpo", "toy_policy_gradient")
}
FEW = {
    "option_critic": [
        ("vector", "none", "continuous"),
        ("dict", "none", "masked"),
        ("vector", "lstm", "continuous"),
    ],
    "flash_sac": [("vector", "none", "continuous"), ("image", "none", "continuous")],
    "bc": [("vector", "none", "continuous"), ("dict", "gru", "masked-tree")],
    "iql": [("vector", "none", "discrete"), ("dict", "gru", "masked-tree")],
}
"""The cells of a rule with many networks, whose checks take long, and of rules for datasets"""
REMEMBERED = {
    **{rule: [("vector", "lstm", "discrete")] for rule in ("c51", "iqn", "qr_dqn")},
    **{rule: [("vector", "lstm", "continuous")] for rule in ("ddpg", "td3")},
    "tqc": [("vector", "lstm", "continuous"), ("vector", "none", "masked-mixed")],
    "dqn": [("vector", "lstm", "discrete"), ("image", "gru", "discrete")],
    "agent57": [("vector", "lstm", "discrete")],
    "ngu": [("dict", "gru", "masked")],
    "sac": [
        ("image", "lstm", "continuous"),
        ("vector", "attention", "continuous"),
        ("vector", "none", "mixed"),
    ],
}
"""Cells that cover every kind of each axis, with memory by rule; the full suite runs the others."""


def common(rule: str) -> list[tuple[str, str, str]]:
    if rule in FEW:
        return FEW[rule]
    cells = [cell for cell in COMMON if rule != "tqc" or cell[2] == "continuous"]
    if rule in TREES:  # they take both kinds of actions: images with one of them, dictionaries with the other
        cells = [cell for cell in cells if cell[::2] not in (("image", "discrete"), ("dict", "continuous"))]
    return [*cells, *REMEMBERED.get(rule, ON_POLICY), *TREES.get(rule, [])]


def cells() -> list[object]:
    return [
        pytest.param(
            rule,
            *cell,
            marks=[] if cell in common(rule) else [pytest.mark.full],
            id="-".join((rule, *cell)),
        )
        for rule in RULES
        for cell in CELLS
        if rule in SOFT or "mixed" not in cell[2]
    ]


@lru_cache(4)
def taken(rule: str, *cell: str) -> Subject | str:
    """The subject of a cell, shared by its checks, or why the rule does not take it."""
    try:
        found = conformance.subject(rule, *cell, **SETTINGS.get(rule, {}))
        found.agent()
    except ConfigError as error:
        return str(error)
    return found


def subject(rule: str, *cell: str) -> Subject:
    found = taken(rule, *cell)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("rule", "observation", "memory", "action"), cells())
def test_contract(rule: str, observation: str, memory: str, action: str, check: str) -> None:
    CHECKS[check](subject(rule, observation, memory, action))


MEMORY_OPTIONS: dict[str, dict[str, Any]] = {
    "ppo-rnn-discrete": {},
    "sac-rnn-continuous": {},
    "ppo-attention-continuous": {"memory_positions": "rotary", "memory_gate": "output", "memory_layers": 2},
    "dqn-attention-discrete": {"memory_positions": "absolute", "memory_gate": "residual"},
    "option_critic-lstm-continuous": {"option_dilation": 3},
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith("ppo") else [pytest.mark.full])
        for name in MEMORY_OPTIONS
    ],
)
def test_contract_with_other_memories(name: str, check: str) -> None:
    rule, memory, action = name.split("-")
    CHECKS[check](conformance.subject(rule, "vector", memory, action, **MEMORY_OPTIONS[name]))


@pytest.mark.parametrize("memory", ["none", pytest.param("lstm", marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", RULES)
def test_not_even_nan_in_a_masked_row_has_influence(rule: str, memory: str) -> None:
    for action in ("discrete", "continuous"):
        try:
            found = conformance.subject(rule, "vector", memory, action, **SETTINGS.get(rule, {}))
            found.agent()
        except ConfigError:
            continue
        conformance.masked_rows_have_no_influence(found, float("nan"))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_takes_some_kind_of_environment(rule: str) -> None:
    assert any(takes(rule, cell) for cell in CELLS)


def takes(rule: str, cell: tuple[str, str, str]) -> bool:
    try:
        conformance.subject(rule, *cell).agent()
    except ConfigError:
        return False
    return True


def plain(name: str, memory: str = "none", **settings: Any) -> Subject:
    """A subject with vector observations and the first kind of action that the algorithm takes."""
    if name in preset_names():
        for layer in preset_layers(load_preset(name), "Untuned-v0"):
            memory = layer.get("memory", memory)
    for action in ("continuous", "discrete") if name == "tqc" else ("discrete", "continuous"):
        try:
            found = conformance.subject(
                name, "vector", memory, action, **{**SETTINGS.get(name, {}), **settings}
            )
            found.agent()
            return found
        except ConfigError:
            continue
    raise AssertionError(f"{name} takes neither discrete nor continuous actions")


def some(names: list[str]) -> list[Any]:
    """Parameters: rules with many networks are part of the full suite only."""
    return [pytest.param(name, marks=pytest.mark.full if name in FEW else ()) for name in names]


@pytest.mark.parametrize("rule", some(RULES))
def test_truncation_is_no_termination(rule: str) -> None:
    # With tanh, the rounds of this check are too few to learn a value of 10 in one step per rollout.
    smooth = {"activation": "elu"} if rule in ("a2c", "impala") else {}
    conformance.tells_truncation_from_termination(plain(rule, **smooth))


REPLAYED = [name for name in rules() if issubclass(algorithm_class(name)[1].Config, OffPolicyConfig)]
TO_ZERO = {"class": "linear", "end": 0.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "prioritized": {"prioritized": True},
    "prioritized-n-step": {"prioritized": True, "n_step": 3, "priority_on_add": True},
    "noisy": {"noisy": True},
    "normalized": {"normalize_obs": True, "clip_obs": True},
    "dropout": {"critic_network": {"class": "mlp", "layer_norm": True, "dropout": 0.1}},
    "residual": {"actor_network": "residual", "critic_network": "residual"},
    "clipped": {"max_grad_norm": 0.5, "weight_decay": 0.01, "q_regularization": 0.1, "lr_schedule": TO_ZERO},
    "double-dueling": {"double": True, "dueling": True},
    "dueling-noisy": {"dueling": True, "noisy": True, "exploration": "none"},
    "munchausen": {"munchausen": 0.9, "rescale_values": True},
    "boltzmann": {"exploration": "boltzmann", "rescale_values": True, "layer_norm": True},
    "meme": {"policy_head": True, "trust_region": 2.0, "normalize_td": True, "soft_lambda": 0.01},
    "distribution": {"n_atoms": 11, "v_min": -20.0, "v_max": 20.0},
    "redrawn": {"noise_scale": [0.01, 0.4], "noise_redraw": True, "target_actor": False, "actor_q": "min"},
    "ladder": {"epsilon_alpha": 7.0, "exploration_initial_eps": 0.4, "exploration_final_eps": 0.4},
}


REFUSED = {
    "crossq": ("noisy", "dueling-noisy", "dropout", "residual"),
    "flash_sac": ("noisy", "dueling-noisy", "dropout", "residual"),
    "agent57": ("dueling-noisy", "boltzmann"),
    "ngu": ("dueling-noisy", "boltzmann"),
}
"""Rules with their own networks or exploration, and the options that they refuse"""


def options_of(rule: str, options: str) -> dict[str, Any]:
    """The options that are settings of a rule."""
    known = conformance.settings_of(rule)
    return {key: value for key, value in OPTIONS[options].items() if key in known}


def in_turn(rule: str, options: str) -> bool:
    """Every rule has priorities over n steps, and two of the other options, so that every option has its rules."""
    others = [name for name in OPTIONS if name != "prioritized-n-step"]
    first = 2 * REPLAYED.index(rule)
    return options == "prioritized-n-step" or options in {others[(first + k) % len(others)] for k in (0, 1)}


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        pytest.param(
            rule,
            options,
            marks=[] if in_turn(rule, options) else [pytest.mark.full],
        )
        for rule in REPLAYED
        for options in OPTIONS
    ],
)
def test_replay_options_keep_the_contracts(rule: str, options: str) -> None:
    if options in REFUSED.get(rule, ()):
        pytest.skip(f"{rule} has networks or exploration of its own")
    settings = options_of(rule, options)
    if not settings:
        pytest.skip(f"{rule} has none of these settings")
    found = plain(rule, **settings)
    for check in CHECKS.values():
        check(found)


CORRECTED = {"use_n_step_is": True, "n_step": 3, "v_lambda": 0.9}
MIXED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "refreshed": ("sac", "none", "mixed", {**CORRECTED, "refresh_probabilities": True, "clip_epsilon": 0.2}),
    "corrected-quantiles": (
        "tqc",
        "none",
        "continuous",
        {**CORRECTED, "clip_epsilon": 0.2, "prioritized": True},
    ),
    "refreshed-memory": (
        "rsac",
        "lstm",
        "masked-mixed",
        {**CORRECTED, "refresh_probabilities": True, "refresh_memory": True},
    ),
    "trajectories": ("sac", "none", "masked-mixed", {"use_replay_buffer": False, "n_step": 3}),
    "trajectories-memory": ("rsac", "gru", "mixed", {"use_replay_buffer": False, "n_step": 3}),
    "conditioned": ("sac", "none", "masked-mixed", {"action_coupling": "conditioned"}),
    "sums": ("sac", "none", "masked-mixed", {"joint_choices": 2}),
    "greedy": ("tqc", "none", "mixed", {"discrete_dqn_like": True, "action_coupling": "conditioned"}),
    "greedy-memory": ("rsac", "gru", "masked-mixed", {"discrete_dqn_like": True}),
    "choices": ("tqc", "none", "multi-binary", {}),
    "conditioned-memory": ("rsac", "lstm", "mixed", {"action_coupling": "conditioned", "n_step": 2}),
    "shared-memory": ("rsac_share", "lstm", "mixed", {}),
    "subsets": ("redq", "none", "mixed", {"action_coupling": "conditioned"}),
    "dropout": ("droq", "none", "mixed", {"action_coupling": "conditioned"}),
}
"""Options of mixed actions and of the correction for other policies, each on a preset"""
LONG_MIXED = (
    "corrected-quantiles",
    "refreshed-memory",
    "trajectories-memory",
    "greedy",
    "dropout",
    "conditioned-memory",
    "greedy-memory",
    "shared-memory",
    "subsets",
    "choices",
)


@pytest.mark.parametrize(
    "options", [pytest.param(name, marks=[pytest.mark.full] if name in LONG_MIXED else []) for name in MIXED]
)
def test_options_of_mixed_actions_keep_the_contracts(options: str) -> None:
    name, memory, action, settings = MIXED[options]
    found = conformance.subject(name, "vector", memory, action, **settings)
    for check in CHECKS.values():
        check(found)


@pytest.mark.parametrize(
    ("name", "memory", "settings"),
    [
        ("sac", "none", {**CORRECTED, "refresh_probabilities": True}),
        pytest.param("tqc", "none", {"discrete_dqn_like": True}, marks=pytest.mark.full),
        pytest.param("rsac", "gru", {}, marks=pytest.mark.full),
    ],
)
def test_parameters_of_choices_keep_the_contracts(name: str, memory: str, settings: dict[str, Any]) -> None:
    settings = {"action_coupling": "conditioned", **settings}
    found = conformance.subject(name, "vector", memory, "mixed", **settings)
    action = TupleSpec({"0": Discrete(3), "1": ACTIONS["continuous"]})
    spec = replace(found.spec, action=action, parameters_of=((0,), (0, 1), ()))
    found = replace(found, spec=spec)
    for check in CHECKS.values():
        check(found)


SEQUENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "refreshed": (
        "dqn",
        {"refresh_memory": True, "prioritized": True, "priority_on_add": True, "n_step": 3, "double": True},
    ),
    "whole": ("qr_dqn", {"whole_episodes": True, "burn_in": 0, "n_step": 2, "munchausen": 0.9}),
    "empty": ("td3", {"stored_memory": False, "num_steps": 12, "target_memory": False, "noise": "ou"}),
    "shared": ("sac", {"share_memory": True, "n_step": 2, "target_memory": False, "normalize_obs": True}),
    "shared-target": ("ddpg", {"share_memory": True, "noisy": True, "prioritized": True}),
}
"""Options of sequences and memories, each on a rule that has them"""


@pytest.mark.parametrize("options", SEQUENCES)
def test_options_of_memory_keep_the_contracts(options: str) -> None:
    rule, settings = SEQUENCES[options]
    found = plain(rule, "lstm", **settings)
    for check in CHECKS.values():
        check(found)


@pytest.mark.parametrize(
    "options", [pytest.param("prioritized", marks=pytest.mark.full), "prioritized-n-step"]
)
@pytest.mark.parametrize("rule", some(REPLAYED))
def test_truncation_is_no_termination_with_priorities_and_n_steps(rule: str, options: str) -> None:
    conformance.tells_truncation_from_termination(plain(rule, **options_of(rule, options)))


@pytest.mark.parametrize(
    ("rule", "memory", "rounds"),
    [
        ("dqn", "lstm", 70),
        pytest.param("td3", "gru", 150, marks=pytest.mark.full),
        pytest.param("sac", "attention", 150, marks=pytest.mark.full),
    ],
)
def test_truncation_is_no_termination_to_a_memory(rule: str, memory: str, rounds: int) -> None:
    found = plain(rule, memory, **OPTIONS["prioritized-n-step"])
    conformance.tells_truncation_from_termination(found, rounds)


@pytest.mark.parametrize("rule", RULES)
def test_policy_gradient_rules_take_trees_of_actions_and_the_others_name_them(rule: str) -> None:
    for action in ("tree", "masked-tree"):
        found = conformance.subject(rule, "vector", "none", action)
        if rule in (*TREES, "bc", "iql"):
            found.agent()
        elif rule not in TOYS:
            others = "has Dict or Tuple actions; use (sac, tqc, )?ppo, ppg, a2c, impala or reinforce$"
            sentence = f"{others}|needs bounded actions"
            with pytest.raises(ConfigError, match=sentence):
                found.agent()


COMPONENT_CHECKS = {**CHECKS, "gives_aligned_rewards": conformance.gives_aligned_rewards}


@pytest.mark.parametrize("check", COMPONENT_CHECKS)
@pytest.mark.parametrize(
    ("component", "algorithm"),
    [
        pytest.param(component, algorithm, marks=[] if algorithm in ("ppo", also) else [pytest.mark.full])
        for component in conformance.component_names()
        for also in [
            "sac"
            if component == "rnd_actions"
            else "dqn"
            if component in ("byol", "episodic", "rnd", "siamese_q")
            else ""
        ]
        for algorithm in ("ppo", "dqn", "a2c", "sac")
    ],
)
def test_a_component_keeps_the_contracts(component: str, algorithm: str, check: str) -> None:
    found = conformance.component_subject(component, algorithm)
    if found is None:
        pytest.skip(f"{component} does not work with {algorithm}")
    COMPONENT_CHECKS[check](found)


@pytest.mark.parametrize("name", sorted(set(preset_names()) - set(rules())))
def test_a_further_preset_is_built_and_stepped(name: str) -> None:
    found = plain(name)
    run = conformance.Run(found)
    assert run.feed(found.rollouts(run.agent, 4))


@pytest.mark.parametrize("name", [*preset_names(), *TOYS])
def test_every_metric_is_documented(name: str) -> None:
    unknown = conformance.metric_names(plain(name)) - documented_metrics()
    assert not unknown, f"docs/metrics.md does not say what {sorted(unknown)} mean"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("rule", "cell"), [(rule, cell) for rule in RULES for cell in common(rule)], ids=str)
def test_captured_equals_eager(rule: str, cell: tuple[str, str, str]) -> None:
    conformance.captured_equals_eager(subject(rule, *cell))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", SEQUENCES)
def test_captured_equals_eager_with_options_of_memory(options: str) -> None:
    rule, settings = SEQUENCES[options]
    conformance.captured_equals_eager(plain(rule, "lstm", **settings))
