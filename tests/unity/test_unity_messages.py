"""Messages and side channels, against bytes that the original package sent and against bytes worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wire
from record import ACTIONS, fields

from whorl.core.errors import EnvError
from whorl.envs.adapters.unity import layout_of
from whorl.envs.stepping import Buffers
from whorl.envs.unity.agents import Agents
from whorl.envs.unity.behaviors import announced, choose
from whorl.envs.unity.messages import messages
from whorl.envs.unity.options import read_options
from whorl.envs.unity.side_channels import ENGINE, PARAMETERS, engine_settings, parameters

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
CALLS = [(bytes.fromhex(call["player"]), bytes.fromhex(call["python"])) for call in RECORDED["calls"]]
GATHERER, WATCHER = "Gatherer?team=0", "Watcher?team=1"
SENT = {"periods": 2.0, "limit": 3.0, "mass": {"uniform": [0.5, 1.5]}, "wind": {"gaussian": [0.0, 2.0]}}


def read(data: bytes) -> Any:
    return messages().UnityMessageProto.FromString(data)


def test_an_action_is_encoded_as_the_original_package_does() -> None:
    message = messages().UnityMessageProto()
    message.header.status = 200
    message.unity_input.rl_input.agent_actions["B?team=0"].value.add().continuous_actions.extend([1, 2])
    assert (
        message.SerializeToString().hex()
        == "0a0308c8011a1c0a1a0a180a08423f7465616d3d30120c0a0a32080000803f00000040"
    )


def test_every_field_is_that_of_the_original_package() -> None:
    assert fields(messages().UnityMessageProto.DESCRIPTOR) == RECORDED["fields"]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_recorded_messages_are_understood_whole(number: int) -> None:
    """What is read and written again has the same length, and the same fields but in maps, whose order is free."""
    for data in CALLS[number]:
        again = read(data).SerializeToString()
        assert len(again) == len(data) and read(again) == read(data)
        assert not _unknown(read(data))


def _unknown(message: Any) -> bool:
    """Whether a field of the wire is none of ours."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    nested = [v for value in inner for v in (_parts(value))]
    return len(UnknownFieldSet(message)) > 0 or any(_unknown(part) for part in nested)


def _parts(value: Any) -> list[Any]:
    if hasattr(value, "values"):
        return [part for part in value.values() if hasattr(part, "ListFields")]
    return [value] if hasattr(value, "ListFields") else list(value)


def test_the_greeting_is_read_as_the_player_sent_it() -> None:
    told = read(CALLS[0][0]).unity_output.rl_initialization_output
    assert (told.name, told.communication_version) == ("AcademySingleton", "1.5.0")
    answer = read(CALLS[0][1]).unity_input.rl_initialization_input
    assert (answer.seed, answer.num_areas, answer.communication_version) == (11, 1, "1.5.0")


def test_side_channels_are_the_bytes_of_the_original_package() -> None:
    options = read_options("unity:x", {"parameters": {**SENT, "gap": {"multi_range": [[0, 1], [2, 3]]}}})
    ours, theirs = options.settings(seed=11), read(CALLS[1][1]).unity_input.rl_input.side_channel
    assert theirs.startswith(ours)
    assert b"TrainingEnvironmentInitialized" in theirs[len(ours) :]  # about Unity's own trainers


def test_engine_settings_by_hand() -> None:
    records = engine_settings(84, 42, 5, 20.0, -1, 60)
    width = bytes.fromhex("2c3451e97e4fea11b238784f4387d1f7") + bytes.fromhex(
        "0c000000" + "00000000" + "54000000" + "2a000000"
    )
    assert records.startswith(width) and ENGINE.bytes_le == width[:16]
    assert records.endswith(bytes.fromhex("08000000" + "04000000" + "3c000000"))


def test_a_parameter_by_hand() -> None:
    assert parameters({"g": 9.5}) == PARAMETERS.bytes_le + bytes.fromhex(
        "0d000000" + "01000000" + "67" + "00000000" + "00001841"
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"g": "heavy"}, "parameter 'g' is 'heavy'; give a number"),
        ({"g": {"unifrom": [0, 1]}}, "did you mean 'uniform'?"),
        ({"g": {"uniform": [1]}}, "give a number, {uniform: [min, max]}"),
        ({"g": {"multi_range": [1, 2]}}, "{multi_range: [[min, max], ...]}"),
        ({"größe": 1}, "use ASCII"),
    ],
)
def test_parameters_that_cannot_be_sent_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvError) as error:
        parameters(given)
    assert sentence in error.value.message


def scene() -> tuple[Agents, Any]:
    first = read(CALLS[2][0])
    behavior = choose(announced(first), "Gatherer")
    return Agents(behavior, Buffers.empty(layout_of(behavior), 3), {}), behavior


def test_behaviours_are_announced_as_the_player_has_them() -> None:
    found = announced(read(CALLS[2][0]))
    assert list(found) == [GATHERER, WATCHER]
    gatherer = found[GATHERER]
    assert (gatherer.continuous, gatherer.branches) == (1, (3, 2))
    assert [(sensor.name, sensor.shape, sensor.png) for sensor in gatherer.sensors] == [
        ("VectorSensor_size3", (3,), False),
        ("RayPerceptionSensor", (9,), False),
        ("CameraSensor", (8, 8, 3), True),
    ]
    assert (found[WATCHER].continuous, found[WATCHER].branches) == (0, (2,))


def test_agents_are_read_as_the_original_package_reads_them() -> None:
    _, behavior = scene()
    ends = 0
    for (call, _), told in zip(CALLS[2:], RECORDED["steps"]):
        infos = read(call).unity_output.rl_output.agentInfos[GATHERER].value
        for done, part in ((False, "decisions"), (True, "ends")):
            here, want = [info for info in infos if info.done == done], told[GATHERER][part]
            ends += done * len(here)
            assert [info.id for info in here] == want["ids"]
            if done:
                assert [info.max_step_reached for info in here] == told[GATHERER]["interrupted"]
            assert np.allclose([info.reward for info in here], want["rewards"])
            for number, sensor in enumerate(behavior.sensors):
                found = [sensor.read(info.observations[number]) for info in here]
                if sensor.png:
                    found = [image[0, 0] / 255 for image in found]
                assert np.allclose(found, want["observations"][number], atol=1e-6)
        masks = told[GATHERER]["masks"]
        if masks:
            forbidden = [~behavior.allowed(info.action_mask) for info in infos if not info.done]
            assert np.array_equal(np.concatenate([np.array(mask) for mask in masks], 1), forbidden)
    assert ends >= 3


def test_actions_are_sent_as_the_original_package_sends_them() -> None:
    agents, _ = scene()
    compared = 0
    for step, (call, answer) in enumerate(CALLS[2:-1]):
        agents.take(read(call))
        continuous, discrete = np.zeros((3, 1), np.float32), np.zeros((3, 2), np.int64)
        for number, (row, _) in enumerate(agents._asking.get(GATHERER, [])):
            continuous[row], discrete[row] = np.split(np.array(ACTIONS[(step + number) % len(ACTIONS)]), [1])
        while not agents.can_be_answered:
            agents.act(continuous, discrete)
            agents.begin()
            agents.act(continuous, discrete)
        ours = agents.message()
        ours.header.status = 200
        assert ours == read(answer)
        assert len(ours.SerializeToString()) == len(answer)
        compared += 1
    assert compared >= 5


def test_the_hand_written_encoding_agrees_with_the_library() -> None:
    """The stand-in does not share the library's mistakes, nor the library those of the stand-in."""
    told = wire.agent(7, [wire.vector([0.5, -2.0])], -1.5, True, True, [True, False], 0.25)
    info = read(wire.output({"B?team=0": [told]})).unity_output.rl_output.agentInfos["B?team=0"].value[0]
    assert (info.id, info.reward, info.done, info.max_step_reached, info.group_reward) == (
        7,
        -1.5,
        True,
        True,
        0.25,
    )
    assert list(info.action_mask) == [True, False] and list(info.observations[0].float_data.data) == [0.5, -2]
    message = messages().UnityMessageProto()
    message.unity_input.rl_input.command = 1
    action = message.unity_input.rl_input.agent_actions["B?team=0"].value.add()
    action.continuous_actions.extend([0.5, -2.0])
    action.discrete_actions.extend([3, 300])
    data = message.SerializeToString()
    assert wire.command(data) == 1 and wire.actions(data) == {"B?team=0": [([0.5, -2.0], [3, 300])]}
