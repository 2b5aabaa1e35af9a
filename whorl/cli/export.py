"""`whorl export`: a trained policy as a file that other programs run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whorl.cli.command import command, one_name, parser_of, wants_help
from whorl.core.errors import ConfigError


@dataclass(frozen=True)
class ExportFlags:
    """Flags of `whorl export`."""

    format: Literal["", "onnx", "torchscript", "safetensors"] = ""
    """onnx, torchscript or safetensors; default: by the suffix of --output, else onnx"""
    output: str = ""
    """file to write; default: policy.onnx, policy.ts or policy.safetensors in the run's folder"""
    stochastic: bool = False
    """sample actions, from random numbers that are inputs, instead of taking the mean or most likely one"""
    best: bool = False
    """export the policy with the best evaluation instead of the newest"""
    behavior: str = ""
    """which policy, where the run has several behaviours"""
    trust: tuple[str, ...] = ()
    """your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code saved with
    the run (code:HASH)"""


@command("export RUN [flags]", ExportFlags)
def export(words: list[str]) -> int:
    """write a trained policy as ONNX, TorchScript or safetensors"""
    parser = parser_of("export")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    run, own, rest = one_name(parser, words, ExportFlags)
    if rest:
        raise ConfigError(f"export takes no settings, but got {next(iter(rest))}")
    from whorl.api import restore
    from whorl.box.names import find_policy
    from whorl.state.formats import FORMATS

    policy = restore(run, best=own.best, behavior=own.behavior, trust=own.trust)
    format = own.format or ("" if Path(own.output).suffix else "onnx")
    path = Path(own.output) if own.output else find_policy(run).output(f"policy{FORMATS[format]}")
    about = policy.export(path, format, own.stochastic)
    print(f"{path}  {path.stat().st_size / 1024:.1f} KiB")
    for side in ("inputs", "outputs"):
        for port in about.get(side, ()):
            shape = [*port["shape"]]
            if port["batch_axis"] is not None:
                shape.insert(port["batch_axis"], "batch")
            print(f"  {side[:-1]:<6} {port['name']}  {port['dtype']} {shape}".replace("'", ""))
    return 0
