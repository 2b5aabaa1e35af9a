"""Scripts that complete the command `whorl` in a shell.

The words are written into the script, so that completing starts no Python: a script belongs to the version of whorl and
to the environment packages that were installed when it was printed. No library writes such a script: argcomplete would
import torch at every press of the key, and shtab would repeat the settings of each algorithm.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from whorl.cli.command import commands
from whorl.core.errors import ConfigError, nearest
from whorl.population.config import EvolveConfig
from whorl.settings.merge import settings_of
from whorl.settings.presets import algorithm_class, algorithms
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import Choice, bare, fields_of, rules_of
from whorl.sweep.config import SweepConfig

SHELLS = ("bash", "zsh", "fish")
_BOOLEAN = ("true", "false")
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""words that mean themselves in every shell; others, which only users' own names can be, are not completed"""


@dataclass(frozen=True)
class _Words:
    """What can be completed."""

    algorithms: dict[str, str]
    envs: list[str]
    flags: dict[str, list[str]]
    """flags by command"""
    settings: dict[str, list[str]]
    """flags of an algorithm's own settings"""
    choices: dict[str, list[str]]
    """values of a flag"""


def script(shell: str) -> str:
    """The script for a shell."""
    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for {shell!r}; {nearest(shell, SHELLS)}")
    words = _words()
    return _fish(words) if shell == "fish" else _bash(words, shell)


def _words() -> _Words:
    run = fields_of(RunConfig)
    choices: dict[str, list[str]] = {}
    hints = {name: dict(fields_of(command.flags)) for name, command in commands().items()}
    for command in ("train", "config", "evolve", "sweep"):
        hints[command] |= run
    hints["evolve"] |= fields_of(EvolveConfig)
    hints["sweep"] |= fields_of(SweepConfig)
    settings: dict[str, dict[str, Any]] = {}
    known = {name: about for name, about in algorithms().items() if _PLAIN.fullmatch(name)}
    for name in known:
        every = settings_of(algorithm_class(name)[1], name)
        settings[name] = {key: hint for key, hint in every.items() if key not in run}
        hints["resume"] |= {key: hint for key, hint in every.items() if key in MAY_CHANGE}
    for found in (*hints.values(), *settings.values()):
        choices |= {_flag(key): values for key, hint in found.items() if (values := _choices(hint))}
    return _Words(
        known,
        _environments(),
        {name: [*_flags(found), "--help"] for name, found in hints.items()},
        {name: _flags(found) for name, found in settings.items()},
        choices,
    )


def _environments() -> list[str]:
    from whorl.envs.adapter import adapters

    return sorted({id for adapter in adapters() for id in adapter.ids() if _PLAIN.fullmatch(id)})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flags(hints: Mapping[str, Any]) -> list[str]:
    return sorted(map(_flag, hints))


def _choices(hint: Any) -> list[str]:
    kind = bare(hint)
    if kind is bool:
        return list(_BOOLEAN)
    names = [name for rule in rules_of(hint) if isinstance(rule, Choice) for name in rule.names]
    if get_origin(kind) is Literal:
        names = [str(option) for option in get_args(kind) if option != ""]
    return [name for name in names if _PLAIN.fullmatch(name)]


def _cases(table: Mapping[str, Iterable[str]], target: str) -> str:
    """Lines of a shell's `case`: keys with the same words share one."""
    by_words: dict[str, list[str]] = {}
    for key, words in table.items():
        by_words.setdefault(" ".join(words), []).append(key)
    return "\n".join(f"    {'|'.join(keys)}) {target}='{words}' ;;" for words, keys in by_words.items())


def _bash(words: _Words, shell: str) -> str:
    where = {
        "bash": "# whorl completion bash > ~/.local/share/bash-completion/completions/whorl",
        "zsh": "# whorl completion zsh > ~/.whorl.zsh, and in ~/.zshrc: source ~/.whorl.zsh",
    }[shell]
    start = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return f"""# Completes the command whorl. To install:
{where}
{start if shell == "zsh" else ""}
_whorl_runs() {{
  local folder
  for folder in "$current"*/; do
    [[ -d $folder ]] && COMPREPLY+=("${{folder%/}}")
  done
  for folder in runs/"$current"*/; do
    folder="${{folder%/}}"
    [[ -d $folder ]] && COMPREPLY+=("${{folder#runs/}}")
  done
  compopt -o filenames 2>/dev/null
}}

_whorl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" algorithm="${{COMP_WORDS[2]}}"
  local words='' choices='' flags='' own=''
  COMPREPLY=()
  if [[ $current == '=' ]]; then
    current=''
  elif [[ $before == '=' ]]; then
    before="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  case "${{before//_/-}}" in
{_cases(words.choices, "choices")}
  esac
  case "$command" in
{_cases(words.flags, "flags")}
  esac
  case "$command" in train|config)
    case "${{algorithm//-/_}}" in
{_cases(words.settings, "own")}
    esac ;;
  esac
  if (( COMP_CWORD == 1 )); then
    words='{" ".join([*commands(), "--help", "--version"])}'
  elif [[ $current == -* ]]; then
    words="$flags $own"
    [[ $command == train || $command == config ]] && words="$words --help-all"
  elif [[ -n $choices ]]; then
    words="$choices"
  elif [[ $before == --* ]]; then
    return
  else
    case "$command:$COMP_CWORD" in
    train:2|config:2) words='{" ".join(words.algorithms)}' ;;
    train:3|config:3|check:2) words='{" ".join(words.envs)}' ;;
    completion:2) words='{" ".join(SHELLS)}' ;;
    eval:*|resume:*|plot:*)
      _whorl_runs
      return ;;
    esac
  fi
  local word
  for word in $(echo "$words"); do
    [[ $word == "$current"* ]] && COMPREPLY+=("$word")
  done
}}
complete -o default -F _whorl whorl
"""


def _fish(words: _Words) -> str:
    lines = [
        "# Completes the command whorl. To install:",
        "# whorl completion fish > ~/.config/fish/completions/whorl.fish",
        "function __whorl_word",
        "    set -l words (commandline -opc)",
        '    test (count $words) -eq $argv[1]; and begin; test (count $argv) -eq 1; or contains -- "$words[2]" '
        "$argv[2..]; end",
        "end",
        "function __whorl_uses",
        "    set -l words (commandline -opc)",
        '    test (count $words) -ge 3; and contains -- "$words[2]" train config; and contains -- "$words[3]" $argv',
        "end",
    ]
    add = "complete -c whorl"
    for name, command in commands().items():
        about = (command.run.__doc__ or "").split("\n")[0].replace("'", "")
        lines.append(f"{add} -f -n '__whorl_word 1' -a {name} -d '{about}'")
    for name, about in words.algorithms.items():
        quoted = about.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"{add} -f -n '__whorl_word 2 train config' -a {name} -d '{quoted}'")
    envs = " ".join(words.envs)
    lines.append(f"{add} -f -n '__whorl_word 3 train config' -a '{envs}'")
    lines.append(f"{add} -f -n '__whorl_word 2 check' -a '{envs}'")
    lines.append(f"{add} -f -n '__whorl_word 2 completion' -a '{' '.join(SHELLS)}'")
    for name, flags in words.flags.items():
        every = [*flags, *(["--help-all"] if name in ("train", "config") else [])]
        lines += [_fish_flag(flag, f"__fish_seen_subcommand_from {name}", words.choices) for flag in every]
    users: dict[str, list[str]] = {}
    for name, flags in words.settings.items():
        for flag in flags:
            users.setdefault(flag, []).append(name)
    lines += [
        _fish_flag(flag, f"__whorl_uses {' '.join(names)}", words.choices) for flag, names in users.items()
    ]
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str, condition: str, choices: Mapping[str, list[str]]) -> str:
    values = f" -x -a '{' '.join(choices[flag])}'" if flag in choices else ""
    return f"complete -c whorl -n '{condition}' -l {flag[2:]}{values}"
