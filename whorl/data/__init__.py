"""Experience: batches, rollouts and the replay buffer."""
