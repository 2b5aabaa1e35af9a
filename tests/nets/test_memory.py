"""Memory between rows: unrolled over a window it says what it says row by row, wherever episodes begin."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl.agents.families import ActorCriticConfig
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.hardware import as_on_gpu
from whorl.core.registry import Part
from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import LAST, STREAMS, Batch
from whorl.nets.actor import Actor, DeterministicHead
from whorl.nets.attention import GATES, rotated, sinusoids
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.memory import (
    LastStep,
    MemoryConfig,
    MemorySettings,
    build_memory,
    memory_settings,
    unroll_all,
)
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.rows import LSTMRows

INPUTS, NUM_ENVS, ROWS = 3, 5, 14
KINDS = {
    "lstm": MemorySettings("lstm", 6),
    "lstm, two layers": MemorySettings("lstm", 6, 2),
    "gru": MemorySettings("gru", 6),
    "gru, two layers": MemorySettings("gru", 6, 2),
    "rnn": MemorySettings("rnn", 6),
    "rnn, two layers": MemorySettings("rnn", 6, 2),
    "attention, few rows": MemorySettings("attention", 6, heads=2, window=3),
    "attention, all rows, two layers": MemorySettings("attention", 6, 2, heads=2, window=40),
    "attention, itself alone": MemorySettings("attention", 6, heads=2, window=1),
    "rotary, few rows": MemorySettings("attention", 8, heads=2, window=3, positions="rotary", gate="output"),
    "rotary, all rows, two layers": MemorySettings(
        "attention", 8, 2, heads=2, window=40, positions="rotary", gate="residual"
    ),
    "absolute, few rows, two layers": MemorySettings(
        "attention", 6, 2, heads=2, window=3, positions="absolute", gate="residual"
    ),
    "without positions": MemorySettings("attention", 6, heads=2, window=5, positions="none"),
    "dilated lstm": MemorySettings("lstm", 6, dilation=3),
    "dilated gru, two layers": MemorySettings("gru", 6, 2, dilation=4),
    "dilated beyond the window": MemorySettings("rnn", 6, dilation=ROWS + 3),
}
WAYS: dict[str, Any] = {"cpu": nullcontext, "gpu": as_on_gpu}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
each_way = pytest.mark.parametrize("way", WAYS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def way_of(name: str) -> AbstractContextManager[None]:
    return WAYS[name]()


def memory_of(kind: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A memory whose every weight counts, those that begin at zero too."""
    torch.manual_seed(seed)
    memory = build_memory(KINDS[kind], INPUTS)
    for parameter in memory.parameters():
        nn.init.normal_(parameter, std=0.4)
    return memory.to(dtype)


def cast(state: Tree, dtype: torch.dtype) -> Tree:
    return tree.map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, state)


def window(dtype: torch.dtype = torch.float64, chance: float = 0.2, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows [R, B, I], and where episodes begin: anywhere, in the first row and in the last too."""
    generator = torch.Generator().manual_seed(seed)
    reset = torch.rand(ROWS, NUM_ENVS, generator=generator) < chance
    reset[0, 0] = reset[-1, 1] = chance > 0
    reset[:, 4] = False
    return torch.randn(ROWS, NUM_ENVS, INPUTS, generator=generator, dtype=dtype), reset


def stored(memory: Any, dtype: torch.dtype = torch.float64, rows: int = 4) -> Tree:
    """The state after some rows of an episode."""
    generator = torch.Generator().manual_seed(2)
    state, no = (
        cast(memory.initial(NUM_ENVS, torch.device("cpu")), dtype),
        torch.zeros(NUM_ENVS, dtype=torch.bool),
    )
    with torch.no_grad():
        for _ in range(rows):
            _, state = memory.step(torch.randn(NUM_ENVS, INPUTS, generator=generator, dtype=dtype), no, state)
    return state


def row_by_row(memory: Any, value: Tensor, reset: Tensor, state: Tree, burn_in: int = 0) -> Tensor:
    outputs = []
    for row in range(len(value)):
        with torch.set_grad_enabled(row >= burn_in):
            output, state = memory.step(value[row], reset[row], state)
        outputs.append(output)
    return torch.stack(outputs)


def assert_close(one: Tensor, other: Tensor, dtype: torch.dtype = torch.float64) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[dtype])


@each_way
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("burn_in", [0, 5])
def test_a_window_says_what_its_rows_say_one_by_one(
    kind: str, way: str, dtype: torch.dtype, burn_in: int
) -> None:
    memory, (value, reset) = memory_of(kind, dtype), window(dtype)
    state = stored(memory, dtype)
    with way_of(way), torch.no_grad():
        assert_close(memory(value, reset, state, burn_in), row_by_row(memory, value, reset, state), dtype)


@each_way
@each_kind
def test_a_window_without_a_state_opens_as_an_episode_does(kind: str, way: str) -> None:
    memory, (value, reset) = memory_of(kind, torch.float32), window(torch.float32, chance=0.0)
    first = reset.clone()
    first[0] = True
    with way_of(way), torch.no_grad():
        opened = memory(value, reset, None, 0)
        assert_close(opened, memory(value, first, stored(memory, torch.float32), 0), torch.float32)


@each_way
@each_kind
def test_a_window_with_a_reset_inside_is_two_windows(kind: str, way: str) -> None:
    memory, (value, reset) = memory_of(kind, torch.float32), window(torch.float32, chance=0.0)
    state = stored(memory, torch.float32)
    inside = reset.clone()
    inside[6] = True
    with way_of(way), torch.no_grad():
        two = torch.cat((memory(value[:6], reset[:6], state, 0), memory(value[6:], reset[6:], None, 0)))
        assert_close(memory(value, inside, state, 0), two, torch.float32)


@each_way
@each_kind
@pytest.mark.parametrize("burn_in", [0, 5])
def test_gradients_are_those_of_the_graph_row_by_row(kind: str, way: str, burn_in: int) -> None:
    memory, (value, reset) = memory_of(kind), window()
    state, wanted = stored(memory), torch.randn(ROWS - burn_in, NUM_ENVS, memory.size, dtype=torch.float64)
    given = value.requires_grad_()

    def gradients(output: Tensor) -> list[Tensor]:
        inputs = [given, *memory.parameters()]
        loss = (output[burn_in:].tanh() * wanted).sum()
        return list(torch.autograd.grad(loss, inputs, materialize_grads=True, allow_unused=True))

    with way_of(way):
        found = gradients(memory(given, reset, state, burn_in))
    for one, other in zip(found, gradients(row_by_row(memory, given, reset, state, burn_in)), strict=True):
        assert_close(one, other)
    assert found[0][burn_in:].abs().sum() > 1, "the claim says something"


@each_way
@each_kind
def test_rows_of_the_burn_in_pass_no_gradient_on(kind: str, way: str) -> None:
    memory, (value, reset) = memory_of(kind), window(chance=0.0)
    value.requires_grad_()
    with way_of(way):
        output = memory(value, reset, stored(memory), 5)
    (found,) = torch.autograd.grad(output[5:].sum(), value)
    assert not found[:5].any()
    assert found[5:].abs().amin() > 0


@pytest.mark.parametrize("members", [1, 2])
def test_the_written_out_derivative_is_the_derivative(members: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keep = (torch.rand(4, 1, 2, 1, generator=generator) > 0.3).double()
    state = drawn(members, 2, 3), drawn(members, 2, 3)
    projected, recurrent = (
        drawn(*shape).requires_grad_() for shape in ((4, members, 2, 12), (members, 12, 3))
    )
    assert torch.autograd.gradcheck(
        lambda rows, weight: LSTMRows.apply(rows, keep, *state, weight, 0), (projected, recurrent)
    )


@pytest.mark.parametrize("kind", ["lstm, two layers", "gru, two layers", "attention, few rows"])
@each_way
def test_memories_unrolled_together_are_memories_unrolled_alone(kind: str, way: str) -> None:
    memories, (value, reset) = [memory_of(kind, seed=seed) for seed in range(3)], window()
    states, burn_in = [stored(memory) for memory in memories], 2
    parameters = [p for memory in memories for p in memory.parameters()]

    def gradients(outputs: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum(o[burn_in:].square().sum() for o in outputs), parameters)

    with way_of(way):
        run_parallel = unroll_all(memories, value, reset, states, burn_in)
        first = unroll_all(memories[:1], value, reset, states, burn_in)
    alone = [memory(value, reset, state, burn_in) for memory, state in zip(memories, states)]
    assert len(run_parallel) == 3 and len(first) == 1
    assert_close(first[0], alone[0])
    for one, other in zip(run_parallel, alone):
        assert_close(one, other)
    for one, other in zip(gradients(run_parallel), gradients(alone)):
        assert_close(one, other)


def test_an_lstm_remembers_by_default() -> None:
    """The forget gate's bias is 1, all others 0: of a cue sigmoid(1) = .73 is left after a row, not a half."""
    memory: Any = build_memory(MemorySettings("lstm", 4), INPUTS)
    assert memory.net.bias_ih_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    assert not memory.net.bias_hh_l0.any()


# Attention


@pytest.mark.parametrize("kind", ["attention, few rows", "attention, itself alone"])
def test_attention_is_what_its_equations_say(kind: str) -> None:
    """Written out row by row: scores of each head with the bias of a row's distance, a gate behind each half."""
    memory, (value, reset) = memory_of(kind), window()
    block, heads, depth = memory.blocks[0], 2, 3

    def gate(part: Any, x: Tensor, y: Tensor) -> Tensor:
        (wr, wz, wh), (br, bz, bh) = part.found.weight.chunk(3), part.found.bias.chunk(3)
        ur, uz = part.stream.weight.chunk(2)
        r, z = torch.sigmoid(wr @ y + br + ur @ x), torch.sigmoid(wz @ y + bz + uz @ x)
        return (1 - z) * x + z * torch.tanh(wh @ y + bh + part.kept.weight @ (r * x))

    expected = torch.zeros(ROWS, NUM_ENVS, memory.size, dtype=torch.float64)
    with torch.no_grad():
        x = memory.input(value)
        query, key, read = block.read(block.norm(x)).unflatten(-1, (3, heads, depth)).unbind(-3)
        for env_index in range(NUM_ENVS):
            begins = 0
            for row in range(ROWS):
                begins = row if reset[row, env_index] else begins
                seen = range(max(begins, row - memory.window + 1), row + 1)
                found = []
                for head in range(heads):
                    scores = [
                        query[row, env_index, head] @ key[t, env_index, head] / depth**0.5
                        + block.distance[head, row - t]
                        for t in seen
                    ]
                    share = torch.stack(scores).softmax(0)
                    found.append(sum(s * read[t, env_index, head] for s, t in zip(share, seen)))
                y = gate(block.gate, x[row, env_index], block.join(torch.cat(found)).relu())
                expected[row, env_index] = gate(block.gate_wide, y, block.wide(block.norm_wide(y)).relu())
        assert_close(
            memory(value, reset, cast(memory.initial(NUM_ENVS, value.device), value.dtype), 0), expected
        )


def test_attention_with_its_cache_is_attention_over_the_whole_prefix() -> None:
    memory, (value, reset) = memory_of("attention, all rows, two layers"), window(chance=0.0)
    state = cast(memory.initial(NUM_ENVS, value.device), value.dtype)
    empty = state
    with torch.no_grad():
        for row in range(ROWS):
            output, state = memory.step(value[row], reset[row], state)
            assert_close(output, memory(value[: row + 1], reset[: row + 1], empty, 0)[-1])
            assert state["count"].tolist() == [row + 1] * NUM_ENVS


def test_attention_reads_its_window_and_nothing_before() -> None:
    memory, (value, reset) = memory_of("attention, few rows"), window(chance=0.0)
    changed = value.clone()
    changed[: ROWS - 3] += 1.0
    empty = cast(memory.initial(NUM_ENVS, value.device), value.dtype)
    with torch.no_grad():
        one, other = memory(value, reset, empty, 0), memory(changed, reset, empty, 0)
    assert torch.equal(one[-1], other[-1])
    assert not torch.isclose(one[-2], other[-2]).all(-1).any()


def test_units_that_heads_can_not_share_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match="memory_size is 6, which is not a multiple of memory_heads 4"):
        build_memory(MemorySettings("attention", 6, heads=4), INPUTS)


# The action and the reward before


ACTION: Any = {
    "steer": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "gear": Discrete(3),
    "buttons": MultiDiscrete((2, 3)),
}


def last_step() -> Tree:
    action = {
        "steer": torch.tensor([[0.5, -1.0], [0.25, 0.75]]),
        "gear": torch.tensor([2, 0]),
        "buttons": torch.tensor([[1, 0], [0, 2]]),
    }
    return {"action": action, "reward": torch.tensor([-3.0, 0.5])}


def test_choices_before_are_one_hot_and_rewards_clipped() -> None:
    read = LastStep(ACTION, MemorySettings(inputs=("action", "reward")), 1.0)
    found = read(last_step(), torch.tensor([False, False]))
    assert found.tolist() == [
        [0.5, -1.0, 0, 0, 1, 0, 1, 1, 0, 0, -1.0],
        [0.25, 0.75, 1, 0, 0, 1, 0, 0, 0, 1, 0.5],
    ]
    assert read.size == found.shape[-1] == 11


def test_without_a_clip_rewards_are_read_whole() -> None:
    found = LastStep(ACTION, MemorySettings(inputs=("reward",)), 0.0)(
        last_step(), torch.tensor([False, False])
    )
    assert found.tolist() == [[-3.0], [0.5]]


def test_intrinsic_rewards_are_read_in_the_units_of_the_reward_and_rescaled() -> None:
    """h(0.3 * 330) = sqrt(100) - 1 + 0.099, h(0.3 * 10) = sqrt(4) - 1 + 0.003"""
    settings = MemorySettings(inputs=("reward", STREAMS), streams=("episodic",), stream_scale=0.3)
    read = LastStep(ACTION, settings, 0.0)
    last = {**last_step(), STREAMS: {"episodic": torch.tensor([330.0, 10.0])}}
    found = read(last, torch.tensor([False, False]))
    torch.testing.assert_close(found, torch.tensor([[-3.0, 9.099], [0.5, 1.003]]))


def test_before_an_episode_there_is_nothing_whatever_stands_there() -> None:
    last = last_step()
    last["action"]["steer"][1] = torch.nan
    last["reward"][1] = torch.nan
    found = LastStep(ACTION, MemorySettings(inputs=("action", "reward")), 1.0)(
        last, torch.tensor([False, True])
    )
    assert found[1].tolist() == [0.0] * 11
    assert found[0].isfinite().all()


@pytest.mark.parametrize("wanted", ["last_action", "last_reward"])
def test_what_no_memory_reads_is_one_sentence(wanted: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{wanted} is read by a memory, but memory is none; choose lstm, gru"
    ):
        memory_settings(MemoryConfig(**{wanted: True}))


SPEC = Spec(Array((INPUTS,)), Continuous((2,), (-1.0, -1.0), (1.0, 1.0)), NUM_ENVS)


def batch_of(memory: Tree, burn_in: int = 0, seed: int = 3) -> Batch:
    """A sequence with resets, and what was done and earned before each row."""
    value, reset = window(torch.float32, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    none = torch.zeros(ROWS - 1, NUM_ENVS)
    last = {
        "action": torch.randn(ROWS, NUM_ENVS, 2, generator=generator),
        "reward": torch.randn(ROWS, NUM_ENVS, generator=generator),
    }
    action = torch.randn(ROWS - 1, NUM_ENVS, 2, generator=generator)
    return Batch(value, reset, action, none, none, none, none, memory, burn_in=burn_in, last=last)


def settings(kind: str, inputs: Any = ()) -> BackboneSettings:
    return BackboneSettings((8,), "tanh", Part("mlp"), Part("flat"), MemorySettings(kind, 8, inputs=inputs))  # type: ignore[arg-type]


@each_way
@pytest.mark.parametrize("kind", ["lstm", "gru", "attention"])
def test_a_body_reads_rows_as_it_reads_them_one_by_one(kind: str, way: str) -> None:
    torch.manual_seed(0)
    backbone = Backbone("net", SPEC.observation, settings(kind, ("action", "reward")), SPEC.action)
    memory = backbone.initial_memory(NUM_ENVS, torch.device("cpu"))
    assert memory[LAST]["action"].shape == (NUM_ENVS, 2) and not memory[LAST]["reward"].any()
    batch = batch_of({"net": memory["net"]})
    rows, found = batch.all, []
    with way_of(way), torch.no_grad():
        for row in range(ROWS):
            memory = {**memory, LAST: tree.index(batch.last, row)}
            features, memory = backbone.step(batch.obs[row], memory, batch.reset[row])
            found.append(features)
        assert_close(backbone(rows), torch.stack(found), torch.float32)
        assert torch.equal(backbone(batch.now), backbone(rows)[:-1])
        assert torch.equal(backbone(batch.next), backbone(rows)[1:])
        ahead = torch.arange(ROWS - 1).unsqueeze(1).expand(-1, NUM_ENVS) // 2 + 3
        chosen = backbone(batch.replace(ahead=ahead).next)
        assert torch.equal(chosen, backbone(rows).gather(0, ahead.unsqueeze(-1).expand(-1, -1, 8)))


def test_nan_before_a_reset_has_no_influence_on_a_body() -> None:
    torch.manual_seed(0)
    backbone = Backbone("net", SPEC.observation, settings("lstm", ("action", "reward")), SPEC.action)
    batch = batch_of({})
    nan = tree.map(lambda leaf: leaf.masked_fill(tree.expand(batch.reset, leaf), torch.nan), batch.last)
    assert nan["reward"].isnan().any()
    one, other = backbone(batch.all), backbone(batch.replace(last=nan).all)
    assert torch.equal(one, other)
    gradients = [
        torch.autograd.grad(found.square().sum(), list(backbone.parameters())) for found in (one, other)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


# Several nets


def critics(members: int, **given: Any) -> QEnsemble:
    torch.manual_seed(0)
    cfg = ActorCriticConfig(critic_hidden_sizes=(8,), memory="lstm", memory_size=6, **given)
    return QEnsemble("critic", SPEC, cfg, members, actions=2)


def opened(found: QEnsemble, seed: int = 0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    memory = found.backbone.initial_memory(NUM_ENVS, torch.device("cpu"))
    return tree.map(lambda leaf: torch.randn(leaf.shape, generator=generator), memory)


@each_way
def test_members_of_an_ensemble_have_memories_of_their_own(way: str) -> None:
    found = critics(3)
    memory = opened(found)
    batch = batch_of(memory)
    with way_of(way), torch.no_grad():
        before = found(batch.now, batch.action)
        assert_close(found.first(batch.now, batch.action), before[0], torch.float32)
        other = {"critic": {**memory["critic"], "1": tree.map(lambda leaf: leaf + 1, memory["critic"]["1"])}}
        told = found(batch.replace(memory=other).now, batch.action)
        assert torch.equal(told[[0, 2]], before[[0, 2]])
        assert not torch.equal(told[1], before[1])
        for parameter in found.backbone.memories[2].parameters():
            parameter += 0.1
        weighed = found(batch.now, batch.action)
    assert torch.equal(weighed[:2], before[:2])
    assert not torch.isclose(weighed[2], before[2]).any()


def test_the_loss_of_one_member_trains_its_memory_alone() -> None:
    found = critics(2)
    batch = batch_of(opened(found))
    loss = found(batch.now, batch.action)[0].sum()
    parameters = [list(memory.parameters()) for memory in found.backbone.memories]
    own = torch.autograd.grad(loss, parameters[0], retain_graph=True)
    other = torch.autograd.grad(loss, parameters[1], allow_unused=True, materialize_grads=True)
    assert all(gradient.any() for gradient in own) and not any(gradient.any() for gradient in other)


def test_a_shared_memory_is_one_for_all_members() -> None:
    found = critics(3, share_memory=True)
    assert len(found.backbone.memories) == 1 and not found.follows
    assert found.initial_memory(NUM_ENVS, torch.device("cpu")) == {}, "the policy keeps it"
    batch = batch_of(opened(found))
    assert found(batch.now, batch.action).shape == (3, ROWS - 1, NUM_ENVS)


def actor_of(read: QEnsemble, **given: Any) -> Actor:
    cfg = ActorCriticConfig(actor_hidden_sizes=(8,), memory="lstm", memory_size=6, **given)
    return Actor("actor", SPEC, cfg, lambda width: DeterministicHead(width, 2), read.backbone)


@each_way
def test_an_actor_reads_the_critics_memory_without_training_it(way: str) -> None:
    read = critics(2, share_memory=True)
    actor = actor_of(read, share_memory=True)
    batch = batch_of(opened(read))
    with way_of(way):
        said = actor(batch.now)
        shared = list(read.parameters())
        assert not {id(p) for p in actor.parameters()} & {id(p) for p in shared}
        own = torch.autograd.grad(said.sum(), list(actor.parameters()), retain_graph=True)
        assert all(gradient.any() for gradient in own)
        assert torch.autograd.grad(said.sum(), shared, allow_unused=True) == (None,) * len(shared)
        earlier = batch.obs.clone()
        earlier[7] += 1
        after = actor(batch.replace(obs=earlier).now)
    assert torch.equal(after[:7], said[:7])
    going = ~batch.reset[8:13].any(0)
    assert (
        going.any() and not torch.isclose(after[12, going], said[12, going], atol=1e-9, rtol=0).all(-1).any()
    )


def test_an_actor_that_shares_memory_acts_as_it_learns() -> None:
    read = critics(2, share_memory=True)
    actor = actor_of(read, share_memory=True)
    memory = actor.initial_memory(NUM_ENVS, torch.device("cpu"))
    batch = batch_of(memory)
    with torch.no_grad():
        learned = actor(batch.all)
        for row in range(ROWS):
            said, memory = actor.step(batch.obs[row], memory, batch.reset[row])
            assert_close(said, learned[row], torch.float32)


# Positions and gates of attention


def test_products_of_rotated_rows_depend_on_the_distance_of_their_places_only() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 8, generator=generator, dtype=torch.float64)

    def product(at: int, other: int) -> float:
        return float((rotated(query, torch.tensor([at])) * rotated(key, torch.tensor([other]))).sum())

    assert product(7, 4) == pytest.approx(product(103, 100), abs=1e-12)
    assert product(4, 4) == pytest.approx(float((query * key).sum()), abs=1e-12)
    assert product(7, 4) != pytest.approx(product(4, 7), abs=1e-3)  # direction counts
    assert product(7, 4) != pytest.approx(product(8, 4), abs=1e-3)


def test_a_rotation_by_hand() -> None:
    # Four columns: the pairs (0, 2) and (1, 3), turned by 1 and by 1/100 per place.
    found = rotated(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([2]))
    expected = [math.cos(2), math.cos(0.02), math.sin(2), math.sin(0.02)]
    assert found[0].tolist() == pytest.approx(expected)


def test_codes_of_places_by_hand() -> None:
    found = sinusoids(torch.tensor([0, 3]), 4, torch.zeros(()))
    assert found[0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert found[1].tolist() == pytest.approx([math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)])


@pytest.mark.parametrize("positions", ["distance", "rotary", "absolute", "none"])
def test_only_without_positions_are_earlier_rows_a_set(positions: str) -> None:
    torch.manual_seed(0)
    memory = build_memory(
        MemorySettings("attention", 8, heads=2, window=8, positions=positions, gate="residual"), INPUTS
    )
    for parameter in memory.parameters():
        nn.init.normal_(parameter, std=0.5)
    value, reset = torch.randn(4, 1, INPUTS), torch.zeros(4, 1, dtype=torch.bool)
    swapped = value[[1, 0, 2, 3]]
    with torch.no_grad():
        last, other = (memory(rows, reset, None, 0)[-1] for rows in (value, swapped))
    assert torch.allclose(last, other, atol=1e-6) == (positions == "none")


def test_an_absolute_place_counts_from_the_start_of_the_episode_beyond_the_window() -> None:
    memory = memory_of("absolute, few rows, two layers")
    value = torch.zeros(30, 1, INPUTS, dtype=torch.float64)
    reset = torch.zeros(30, 1, dtype=torch.bool)
    reset[20] = True
    with torch.no_grad():
        found = memory(value, reset, None, 0)
    assert_close(found[20:], found[:10])
    assert not torch.allclose(
        found[8], found[9]
    )  # the window holds three equal rows, but the step is another


def test_the_gru_gate_lets_little_through_at_the_start_and_residual_all() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(500, 32), torch.randn(500, 32)

    def passed(kind: str, found: Tensor) -> float:
        return float((GATES[kind](32)(x, found) - x).norm() / found.norm())

    with torch.no_grad():
        stayed = torch.nn.functional.cosine_similarity(GATES["gru"](32)(x, y), x, dim=-1)
        assert float(stayed.mean()) > 0.9
        assert passed("output", y) < 0.3
        assert torch.equal(GATES["residual"](32)(x, y), x + y)


def test_an_output_gate_by_hand() -> None:
    gate = GATES["output"](2)
    nn.init.eye_(gate.open.weight)
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0]])
    shares = [1 / (1 + math.exp(1)), 0.5]  # of 1 - 2 and 2 - 2
    assert gate(x, y)[0].tolist() == pytest.approx([1 + 10 * shares[0], 2 + 20 * shares[1]])


def test_recorded_weights_are_those_that_attention_used_and_sum_to_one() -> None:
    memory = memory_of("attention, few rows")
    block = memory.blocks[0]
    block.weights = []
    value, reset = window(chance=0.0)
    with torch.no_grad():
        memory(value, reset, None, 0)
    (weights,) = block.weights
    assert weights.shape == (NUM_ENVS, 2, ROWS, 2 + ROWS)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert (weights[:, :, 0, :2] == 0).all() and (weights[:, :, 0, 2] == 1).all()  # nothing is cached
    assert (weights[:, :, 5, :5] == 0).all() and (weights[:, :, 5, 8:] == 0).all()  # three rows: 3, 4 and 5


def test_a_row_meets_itself_unrotated_and_the_row_before_at_a_distance_of_one() -> None:
    torch.manual_seed(0)
    memory = build_memory(MemorySettings("attention", 4, heads=1, window=6, positions="rotary"), INPUTS)
    memory = memory.double()
    (block,) = memory.blocks
    block.weights = []
    value = torch.randn(2, 1, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        memory(value, torch.zeros(2, 1, dtype=torch.bool), None, 0)
        query, key, _ = block.read(block.norm(memory.input(value[:, 0]))).chunk(3, -1)
        before = (rotated(query[1:], torch.tensor([1])) * key[0]).sum()
        scores = torch.stack([before, (query[1] * key[1]).sum()]) / 2  # the root of four columns
    torch.testing.assert_close(block.weights[0][0, 0, 1, -2:], scores.softmax(0))


def test_rotary_positions_need_an_even_size_per_head() -> None:
    with pytest.raises(ConfigError, match="rotary positions need an even size per head"):
        build_memory(MemorySettings("attention", 6, heads=2, positions="rotary"), INPUTS)


def test_a_plain_rnn_by_hand() -> None:
    memory = build_memory(MemorySettings("rnn", 1), 1)
    weights = [torch.tensor(value) for value in ([[2.0]], [[0.5]], [0.1], [0.0])]
    for parameter, value in zip(memory.net.all_weights[0], weights):
        parameter.data.copy_(value)
    value, reset = torch.tensor([[[1.0]], [[-1.0]], [[1.0]]]), torch.tensor([[False], [False], [True]])
    first = math.tanh(2.1)
    second = math.tanh(-1.9 + 0.5 * first)
    with torch.no_grad():
        found = memory(value, reset, None, 0)
    assert found[:, 0, 0].tolist() == pytest.approx([first, second, first])


def test_a_dilated_memory_has_a_sequence_for_each_turn_and_gives_the_mean_of_the_last_rows() -> None:
    memory, (value, reset) = memory_of("dilated lstm"), window(chance=0.0)
    with torch.no_grad():
        h = torch.zeros(ROWS, NUM_ENVS, 6, dtype=torch.float64)
        for turn in range(3):
            rows = slice(turn, None, 3)
            h[rows] = memory.cell(
                value[rows], reset[rows], cast(memory.cell.initial(NUM_ENVS, value.device), value.dtype), 0
            )
        wanted = torch.stack([h[max(0, row - 2) : row + 1].sum(0) / 3 for row in range(ROWS)])
        state = cast(memory.initial(NUM_ENVS, value.device), value.dtype)
        assert_close(memory(value, reset, state, 0), wanted)
        assert_close(row_by_row(memory, value, reset, state), wanted)
