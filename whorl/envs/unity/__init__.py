"""Unity ML-Agents' protocol: messages, side channels, players, sensors and agents; `adapters/unity.py` makes it a batch."""
