"""Unity ML-Agents' protocol: messages, side channels, players, sensors and agents. See `whorl.envs.adapters.unity`."""
