"""Batches with some fields changed."""

import pytest
import torch

from whorl.data.batch import Batch
from whorl.distributed.replay_shards import ShardBatch


def test_a_changed_batch_of_a_shard_is_still_one_that_other_learners_can_read() -> None:
    ones = torch.ones(1, 2)
    batch = ShardBatch(torch.zeros(2, 2, 3), torch.zeros(2, 2).bool(), ones.long(), ones, mask=ones, shard=3)
    found = batch.replace(reward=2 * ones).replace(token="a")
    assert isinstance(found, ShardBatch) and (found.shard, found.token) == (3, "a")
    assert found.reward.tolist() == [[2, 2]] and batch.reward.tolist() == [[1, 1]] and batch.token is None


def test_in_a_rollout_of_one_row_a_first_observation_that_waits_counts_with_the_answer() -> None:
    # The first environment has not answered its first observation, the second one ended in the rollout before.
    reset = torch.tensor([[True, False], [True, True]])
    nothing = torch.zeros(1, 2)
    batch = Batch(torch.zeros(2, 2, 3), reset, nothing.long(), nothing, mask=nothing)
    assert batch.observed.tolist() == [[0, 1]]


def test_a_field_that_a_batch_lacks_is_an_error() -> None:
    ones = torch.ones(1, 2)
    batch = Batch(torch.zeros(2, 2, 3), torch.zeros(2, 2).bool(), ones.long(), ones, mask=ones)
    with pytest.raises(TypeError, match="a batch has no token"):
        batch.replace(token=1)
