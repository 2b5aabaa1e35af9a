"""Minibatches of a rollout: every row once per pass, in a new order each time."""

import torch
from torch import Tensor

from whorl.data.batch import Batch
from whorl.data.discounting import Discounting
from whorl.data.rollouts import Rollouts, minibatches

STEPS, NUM_ENVS = 8, 4


def orders(passes: int) -> list[list[int]]:
    """The numbers of the rows as they come in each pass."""
    number = torch.arange(STEPS * NUM_ENVS).reshape(STEPS, NUM_ENVS)
    ones, generator = torch.ones(STEPS, NUM_ENVS), torch.Generator().manual_seed(0)
    obs = torch.arange(STEPS * NUM_ENVS + NUM_ENVS).reshape(STEPS + 1, NUM_ENVS)
    batch = Batch(obs, torch.zeros(STEPS + 1, NUM_ENVS) > 1, {}, ones, ones, ones, ones)
    found = []
    for _ in range(passes):
        parts: list[Tensor] = []
        for rows, data in minibatches(batch, {"number": number}, 8, generator):
            assert rows.obs.equal(data["number"])
            assert data["number"].shape == (1, 8)
            parts.append(data["number"][0])
        found.append(torch.cat(parts).tolist())
    return found


def test_every_row_comes_once_per_pass_in_a_new_order() -> None:
    first, second = orders(2)
    every = list(range(STEPS * NUM_ENVS))
    assert sorted(first) == sorted(second) == every
    assert first != every and second != every and first != second


def test_a_rollout_that_waits_is_restored_on_the_device_of_the_batches() -> None:
    rows = {"reward": torch.zeros(3, 2), "keep": torch.ones(3, 2), "mask": torch.ones(3, 2)}
    rollout = Batch(
        obs=torch.zeros(4, 2, 1), reset=torch.zeros(4, 2) > 0, action=torch.zeros(3, 2, 1), **rows
    )
    here, there = (
        Rollouts(Discounting(0.99, (), True), device=name, overlaps=True) for name in ("cpu", "meta")
    )
    here.add(rollout)
    there.load_state_dict(here.state_dict())
    assert there._pending is not None and there._pending.obs.device.type == "meta"


def test_a_rollout_that_waits_is_a_copy() -> None:
    rows = {"reward": torch.zeros(3, 2), "keep": torch.ones(3, 2), "mask": torch.ones(3, 2)}
    rollout = Batch(
        obs=torch.zeros(4, 2, 1), reset=torch.zeros(4, 2) > 0, action=torch.zeros(3, 2, 1), **rows
    )
    waiting = Rollouts(Discounting(0.99, (), True), device="cpu", overlaps=True)
    waiting.add(rollout)
    rollout.obs.fill_(1)  # the collector writes the next one there
    assert waiting._pending is not None and not waiting._pending.obs.any()


def test_a_rollout_that_waits_can_still_be_cut() -> None:
    rows = {"reward": torch.zeros(3, 2), "keep": torch.ones(3, 2), "mask": torch.ones(3, 2)}
    rollout = Batch(
        obs=torch.zeros(4, 2, 1), reset=torch.zeros(4, 2) > 0, action=torch.zeros(3, 2, 1), **rows
    )
    waiting = Rollouts(Discounting(0.99, (), True), device="cpu", overlaps=True)
    waiting.cut()
    assert not waiting.waits
    waiting.add(rollout)
    assert waiting.waits and waiting._pending is not None
    waiting.cut(torch.tensor([False, True]))
    assert waiting._pending.keep.tolist() == [[1, 1], [1, 1], [1, 0]]
    waiting.cut()
    assert waiting._pending.keep.tolist() == [[1, 1], [1, 1], [0, 0]]
    assert rollout.keep.all()  # the collector's own rows stay
