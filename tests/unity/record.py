"""Records what the original package sends to the stand-in player, and how it reads the player: `recorded.json`.

Run with mlagents-envs 1.1.0 in an environment of its own (Python 3.10 or 3.11):

    pip install --no-deps --ignore-requires-python mlagents-envs==1.1.0
    pip install "protobuf<3.21" "grpcio<1.63" numpy pillow cloudpickle filelock attrs pyyaml gym pettingzoo
    python tests/unity/record.py
"""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ACTIONS = ((0.25, 0, 1), (-1.0, 0, 0), (1.0, 0, 1))
"""what each agent does in turn: its continuous action, its two discrete ones"""


def main() -> None:
    from mlagents_envs.base_env import ActionTuple
    from mlagents_envs.environment import UnityEnvironment
    from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel
    from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel

    log = Path(tempfile.mkdtemp()) / "log"
    engine, parameters = EngineConfigurationChannel(), EnvironmentParametersChannel()
    words = ["--task", "gather", "--agents", "3", "--watchers", "1", "--record", str(log)]
    player = [sys.executable, str(HERE / "player.py"), "--mlagents-port", "5004", *words]
    # The constructor returns when the player has called.
    starting = threading.Thread(target=subprocess.run, args=(player,))
    starting.start()
    env = UnityEnvironment(None, seed=11, side_channels=[engine, parameters], timeout_wait=30)
    engine.set_configuration_parameters(84, 84, 5, 20.0, -1, 60)
    parameters.set_float_parameter("periods", 2.0)
    parameters.set_float_parameter("limit", 3.0)
    parameters.set_uniform_sampler_parameters("mass", 0.5, 1.5, 11)
    parameters.set_gaussian_sampler_parameters("wind", 0.0, 2.0, 11)
    parameters.set_multirangeuniform_sampler_parameters("gap", [(0.0, 1.0), (2.0, 3.0)], 11)
    env.reset()
    seen = []
    for step in range(8):
        here = {}
        for name in env.behavior_specs:
            decisions, ends = env.get_steps(name)
            here[name] = {
                "decisions": _told(decisions),
                "ends": _told(ends),
                "masks": []
                if decisions.action_mask is None
                else [mask.tolist() for mask in decisions.action_mask],
                "interrupted": ends.interrupted.tolist(),
            }
            spec = env.behavior_specs[name].action_spec
            count = len(decisions)
            if count:
                chosen = [ACTIONS[(step + number) % len(ACTIONS)] for number in range(count)]
                env.set_actions(
                    name,
                    ActionTuple(
                        np.array([row[:1] for row in chosen], np.float32)[:, : spec.continuous_size],
                        np.array([row[1:] for row in chosen], np.int32)[:, : spec.discrete_size]
                        * (spec.continuous_size > 0),
                    ),
                )
        seen.append(here)
        if step < 7:
            env.step()
    env.close()
    starting.join()
    calls = [line.split() for line in log.read_text().splitlines()]
    found = {
        "made with": "mlagents-envs 1.1.0, protobuf 3.20.3, by tests/unity/record.py",
        "calls": [{"player": call, "python": answer} for call, answer in calls],
        "steps": seen,
        "fields": fields(_descriptor()),
    }
    text = json.dumps(found).replace('{"player"', '\n{"player"').replace('{"Gatherer', '\n{"Gatherer')
    text = text.replace('"communicator_objects.', '\n"communicator_objects.')
    (HERE / "recorded.json").write_text(text + "\n")


def _descriptor() -> Any:
    from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto

    return UnityMessageProto.DESCRIPTOR


def fields(message: Any) -> dict[str, dict[str, list[Any]]]:
    """Number, type, whether repeated, and nested message of every field of a message and of those in it, by message."""
    found: dict[str, dict[str, list[Any]]] = {message.full_name: {}}
    for field in message.fields:
        inner = field.message_type
        # Releases of protobuf differ in how they tell.
        several = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
        told = [field.number, field.type, several, inner.full_name if inner is not None else ""]
        found[message.full_name][field.name] = told
        if inner is not None and inner.full_name not in found:
            found.update(fields(inner))
    return found


def _told(steps: Any) -> dict[str, Any]:
    """Ids, rewards and observations as the original package reads them."""
    return {
        "ids": steps.agent_id.tolist(),
        "rewards": steps.reward.tolist(),
        # Of images one pixel, [agents, channels].
        "observations": [
            (obs[:, :, 0, 0] if obs.ndim == 4 else obs).astype(float).round(6).tolist() for obs in steps.obs
        ],
    }


if __name__ == "__main__":
    main()
