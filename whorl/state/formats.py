"""Policies as files of other formats: ONNX, TorchScript, and safetensors with a description.

ONNX and TorchScript files hold one step of the policy (see `whorl.state.traced`) and what its inputs and outputs are.
A safetensors file holds weights and settings, from which `read_safetensors` builds the policy again; reading it runs no
code.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError, missing_extra, nearest
from whorl.core.version import __version__
from whorl.state.policy import FORMAT, SavedPolicy, export, load_policy
from whorl.state.saved_spec import pack_spec
from whorl.state.traced import Port, TracedPolicy

FORMATS = {"onnx": ".onnx", "torchscript": ".ts", "safetensors": ".safetensors"}
"""formats, and the suffix of each"""
SUFFIXES = {**{suffix: name for name, suffix in FORMATS.items()}, ".pt": "torchscript"}
METADATA = "whorl"
"""key of the description, JSON, in every format"""
OPSET = 18
_LONGEST_BATCH = 2**20


def export_policy(
    policy: SavedPolicy, path: str | Path, format: str = "", stochastic: bool = False
) -> dict[str, Any]:
    """Write a policy to a file; the format follows from the suffix if it is not given. Returns the description.

    Args:
        stochastic: whether the actions are sampled, from random numbers among the inputs; else they are greedy. A
            safetensors file does both.
    """
    path = Path(path)
    chosen = format or SUFFIXES.get(path.suffix, "")
    if chosen not in FORMATS:
        if format:
            raise ConfigError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
        raise ConfigError(
            f"{path} has no suffix of a known format; use {', '.join(SUFFIXES)}, or name a format"
        )
    if SUFFIXES.get(path.suffix, chosen) != chosen:
        raise ConfigError(
            f"{path} ends like a file of {SUFFIXES[path.suffix]}, but the format is {chosen}; leave one out"
        )
    if chosen == "safetensors" and stochastic:
        raise ConfigError("a safetensors file holds the whole policy; stochastic is chosen when it acts")
    if not path.absolute().parent.is_dir():  # exporting takes a while
        raise WhorlError(
            f"{path} cannot be written: the folder does not exist; create it or choose another one"
        )
    data, about = _safetensors(policy) if chosen == "safetensors" else _traced(policy, chosen, stochastic)
    try:
        files.write_atomic(path, data)
    except OSError as error:
        raise WhorlError(f"{path} cannot be written: {files.reason(error)}") from None
    return about


def describe(traced: TracedPolicy) -> dict[str, Any]:
    """What a traced policy is and reads: plain containers that JSON can hold."""
    return {
        **_about(traced.policy),
        "stochastic": traced.stochastic,
        "inputs": [_port(port) for port in traced.inputs],
        "outputs": [_port(port) for port in traced.outputs],
    }


def read_safetensors(path: str | Path, trust: tuple[str, ...] = (), device: str = "cpu") -> SavedPolicy:
    """The policy in a safetensors file that `export_policy` wrote; see `only_trusted` for `trust`."""
    safetensors = _package("safetensors")
    try:
        with safetensors.safe_open(str(path), "pt") as opened:
            about = json.loads((opened.metadata() or {}).get(METADATA, "{}"))
            names = opened.keys()
            module = {name: opened.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is not the safetensors file of a policy: {error}") from None
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but not of a policy that this version of Whorl wrote"
        )
    policy = load_policy({**about, "module": module}, trust, device)
    policy.steps, policy.origin = int(about["steps"]), dict(about["origin"])
    return policy


def _about(policy: SavedPolicy) -> dict[str, Any]:
    """What all formats say about a policy."""
    settings, spec = policy.settings, pack_spec(policy.reads)
    commit = policy.origin.get("whorl_commit") or {}
    return {
        "algorithm": settings.algorithm,
        "env": settings.env,
        "steps": policy.steps,
        "observation_space": spec["observation"],
        "action_space": spec["action"],
        "whorl": __version__,
        "commit": commit.get("id", ""),
    }


def _port(port: Port) -> dict[str, Any]:
    return {key: value for key, value in asdict(port).items() if value != ""}


def _traced(policy: SavedPolicy, format: str, stochastic: bool) -> tuple[bytes, dict[str, Any]]:
    """One step of the policy in a format of graphs, and its description."""
    if policy.agent.device.type != "cpu":
        given, policy = policy, SavedPolicy(copy.deepcopy(policy.agent).cpu(), policy.settings)
        policy.steps, policy.origin = given.steps, given.origin
    with _unexportable(policy, format), torch.no_grad():
        traced = TracedPolicy(policy, stochastic).eval()
        about = describe(traced)
        return (_onnx if format == "onnx" else _torchscript)(traced, about), about


@contextmanager
def _unexportable(policy: SavedPolicy, format: str) -> Iterator[None]:
    """One sentence for a policy that the exporter does not understand, such as one with a network of the user's."""
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # else it names packages that are not there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporters, about themselves
            yield
    except WhorlError:
        raise
    except Exception as error:  # exporters raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WhorlError(
            f"{policy.settings.algorithm} with these networks cannot be exported as {format}: {lines[0]}"
        ) from error
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


def _onnx(traced: TracedPolicy, about: Mapping[str, Any]) -> bytes:
    onnx = _package("onnx")
    _package("onnxscript")
    batch = torch.export.Dim("batch", min=1, max=_LONGEST_BATCH)
    axes = tuple({} if port.batch_axis is None else {port.batch_axis: batch} for port in traced.inputs)
    program = torch.export.export(traced, traced.example(2), dynamic_shapes=(axes,), strict=False)
    names = [port.name for port in traced.inputs], [port.name for port in traced.outputs]
    found: Any = torch.onnx.export(
        program, input_names=names[0], output_names=names[1], opset_version=OPSET, dynamo=True, verbose=False
    )
    model = found.model_proto
    _name_batch(model, [*traced.inputs, *traced.outputs])
    onnx.helper.set_model_props(model, {METADATA: json.dumps(about), **_plain_entries(about)})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _plain_entries(about: Mapping[str, Any]) -> dict[str, str]:
    """The entries that viewers of ONNX files show."""
    return {key: str(about[key]) for key in ("algorithm", "env", "steps", "commit")}


def _name_batch(model: Any, ports: list[Port]) -> None:
    """Call the axis of the batch `batch`, for which the exporter has a name of its own."""
    by_name = {port.name: port for port in ports}
    given: set[str] = set()
    for value in (*model.graph.input, *model.graph.output):
        axis = by_name[value.name].batch_axis
        if axis is not None:
            given.add(value.type.tensor_type.shape.dim[axis].dim_param)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in given - {""}:
                size.dim_param = "batch"


def _torchscript(traced: TracedPolicy, about: Mapping[str, Any]) -> bytes:
    script = torch.jit.freeze(torch.jit.trace(traced, traced.example(2), check_trace=False))
    file = io.BytesIO()
    torch.jit.save(script, file, _extra_files={METADATA: json.dumps(about)})
    return file.getvalue()


def _safetensors(policy: SavedPolicy) -> tuple[bytes, dict[str, Any]]:
    """All weights, and what the policy is built from."""
    _package("safetensors")
    from safetensors.torch import save

    saved = export(policy.agent, policy.settings, acting=policy.acts_only)
    module = {name: value.detach().cpu().clone().contiguous() for name, value in saved.pop("module").items()}
    about = {**_about(policy), **saved, "origin": policy.origin}
    return save(module, {METADATA: json.dumps(about)}), about


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise missing_extra(name, "export") from None
