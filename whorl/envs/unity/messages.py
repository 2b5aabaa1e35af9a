"""The messages of ML-Agents' protocol, built from the table below: neither protoc nor generated files are needed.

Field names, numbers and types are those of `communicator_objects` in ML-Agents (Apache-2.0), communication version
1.5.0. The classes live in a pool of their own, so that `mlagents_envs` can be imported in the same process.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

from whorl.core.errors import missing_extra

SERVICE = "communicator_objects.UnityToExternalProto"
METHOD = "Exchange"
VERSION = "1.5.0"
"""of the communication; players with the same first number are understood"""
OK, CLOSE = 200, 400
"""status in the header of a message: go on, or end the connection"""
STEP, RESET = 0, 1
"""commands"""
PNG = 1
"""a compression type"""

_PACKAGE = "communicator_objects"
_ENUMS = {
    "CommandProto": "STEP RESET QUIT",
    "CompressionTypeProto": "NONE PNG",
    "ObservationTypeProto": "DEFAULT GOAL_SIGNAL",
    "SpaceTypeProto": "discrete continuous",
}
_MESSAGES = {
    "UnityMessageProto": "1 header HeaderProto, 2 unity_output UnityOutputProto, 3 unity_input UnityInputProto",
    "HeaderProto": "1 status int32, 2 message string",
    "UnityInputProto": "1 rl_input UnityRLInputProto, "
    "2 rl_initialization_input UnityRLInitializationInputProto",
    "UnityOutputProto": "1 rl_output UnityRLOutputProto, "
    "2 rl_initialization_output UnityRLInitializationOutputProto",
    "UnityRLInitializationInputProto": "1 seed int32, 2 communication_version string, 3 package_version string, "
    "4 capabilities UnityRLCapabilitiesProto, 5 num_areas int32",
    "UnityRLInitializationOutputProto": "1 name string, 2 communication_version string, 3 log_path string, "
    "5 brain_parameters BrainParametersProto[], 7 package_version string, 8 capabilities UnityRLCapabilitiesProto",
    "UnityRLInputProto": "1 agent_actions {ListAgentActionProto}, 4 command CommandProto, 5 side_channel bytes",
    "UnityRLInputProto.ListAgentActionProto": "1 value AgentActionProto[]",
    "UnityRLOutputProto": "2 agentInfos {ListAgentInfoProto}, 3 side_channel bytes",
    "UnityRLOutputProto.ListAgentInfoProto": "1 value AgentInfoProto[]",
    "AgentInfoProto": "7 reward float, 8 done bool, 9 max_step_reached bool, 10 id int32, 11 action_mask bool[], "
    "13 observations ObservationProto[], 14 group_id int32, 15 group_reward float",
    "AgentActionProto": "1 vector_actions_deprecated float[], 4 value float, 6 continuous_actions float[], "
    "7 discrete_actions int32[]",
    "ObservationProto": "1 shape int32[], 2 compression_type CompressionTypeProto, "
    "3 compressed_data bytes|observation_data, 4 float_data FloatData|observation_data, "
    "5 compressed_channel_mapping int32[], 6 dimension_properties int32[], "
    "7 observation_type ObservationTypeProto, 8 name string",
    "ObservationProto.FloatData": "1 data float[]",
    "BrainParametersProto": "3 vector_action_size_deprecated int32[], "
    "5 vector_action_descriptions_deprecated string[], 6 vector_action_space_type_deprecated SpaceTypeProto, "
    "7 brain_name string, 8 is_training bool, 9 action_spec ActionSpecProto",
    "ActionSpecProto": "1 num_continuous_actions int32, 2 num_discrete_actions int32, "
    "3 discrete_branch_sizes int32[], 4 action_descriptions string[]",
    "UnityRLCapabilitiesProto": "1 baseRLCapabilities bool, 2 concatenatedPngObservations bool, "
    "3 compressedChannelMapping bool, 4 hybridActions bool, 5 trainingAnalytics bool, "
    "6 variableLengthObservation bool, 7 multiAgentGroups bool",
}
"""message -> its fields, `number name type`: [] repeated, {} map from strings to a nested message, | part of a oneof"""


def grpc() -> Any:
    """The package grpcio."""
    try:
        import grpc
    except ImportError as error:
        raise missing_extra("grpcio", "unity") from error
    return grpc


@cache
def messages() -> Any:
    """The message classes by name: `messages().UnityMessageProto()`."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise missing_extra("protobuf", "unity") from error
    file = descriptor_pb2.FileDescriptorProto(name="whorl/unity.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            # Values share the file's scope, and NONE or DEFAULT may stand for themselves once only.
            enum.value.add(name=f"{name}_{value}", number=number)
    for name, fields in _MESSAGES.items():
        outer, _, inner = name.partition(".")
        if inner:
            parent = next(message for message in file.message_type if message.name == outer)
            _fill(parent.nested_type.add(name=inner), f"{outer}.{inner}", fields)
        else:
            _fill(file.message_type.add(name=name), name, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {
        name.replace(".", "_"): message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }
    return SimpleNamespace(**found)


def _fill(message: Any, path: str, fields: str) -> None:
    """Add the fields of a message to its descriptor."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    for text in fields.split(", "):
        number, name, kind = text.split()
        kind, _, oneof = kind.partition("|")
        field = message.field.add(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
        if kind.startswith("{"):
            _add_map(message, path, field, kind[1:-1])
            continue
        if kind.endswith("[]"):
            field.label, kind = Field.LABEL_REPEATED, kind[:-2]
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            field.oneof_index = 0
        _set_type(field, kind, path)


def _add_map(message: Any, path: str, field: Any, value: str) -> None:
    """A map is repeated entries of a nested message with `key` and `value`."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    entry = "".join(part[0].upper() + part[1:] for part in field.name.split("_")) + "Entry"
    nested = message.nested_type.add(name=entry)
    nested.options.map_entry = True
    nested.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
    inner = nested.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
    inner.type, inner.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{path}.{value}"
    field.label, field.type = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
    field.type_name = f".{_PACKAGE}.{path}.{entry}"


def _set_type(field: Any, kind: str, path: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    if kind in _ENUMS:
        field.type, field.type_name = Field.TYPE_ENUM, f".{_PACKAGE}.{kind}"
    elif kind in _MESSAGES or f"{path}.{kind}" in _MESSAGES:
        full = kind if kind in _MESSAGES else f"{path}.{kind}"
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{full}"
    else:
        field.type = getattr(Field, f"TYPE_{kind.upper()}")
