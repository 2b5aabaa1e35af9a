"""Passwords, keys and tokens among settings and on the command line, which are never written to a file."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whorl.core.errors import ConfigError

HIDDEN = "<not saved>"
_NAME = re.compile(
    r"(.*[_.-])?(token|secret|password|passwd|passphrase|credentials?|auth|authorization"
    r"|(api|access|secret|private|auth)[_-]?key([_-]?id)?)",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")
"""name and password of an address"""
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[^\s\"',}\])]+")
_FLAG = re.compile(r"""(--([\w.-]+)\s+)(?!--)([^\s"']+)""")
_ASSIGNED = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)(["']?)([^\s"',}\])]+)\4""")
_SHORTEST = 6
"""characters of a variable's value from which it is looked for in other texts"""


def is_secret(name: str) -> bool:
    """Whether a name is that of a secret: token, api_key, DB_PASSWORD, but not num_tokens or obs_key."""
    return _NAME.fullmatch(name) is not None


def hidden(value: Any, name: str = "") -> Any:
    """Plain settings with the words and numbers of secrets replaced."""
    if isinstance(value, Mapping):
        return {key: hidden(inner, str(key)) for key, inner in value.items()}
    if is_secret(name) and value is not None and not isinstance(value, bool) and value != "":
        return HIDDEN
    if isinstance(value, list):
        words = all(isinstance(inner, str) for inner in value)
        return hidden_words(value) if words else [hidden(inner, name) for inner in value]
    return _without_marked(value) if isinstance(value, str) else value


def values_in(value: Any, name: str = "") -> list[str]:
    """The secrets among plain settings and environment variables that are long enough to be looked for in a text."""
    found = [value for key, value in os.environ.items() if is_secret(key)] if not name else []
    if isinstance(value, Mapping):
        found += [secret for key, inner in value.items() for secret in values_in(inner, str(key))]
    elif isinstance(value, str) and is_secret(name):
        found.append(value)
    return [secret for secret in found if len(secret) >= _SHORTEST]


def hidden_words(words: Sequence[str]) -> list[str]:
    """A command line without secrets: values of flags and assignments named so, and those of environment variables."""
    known = [value for name, value in os.environ.items() if is_secret(name) and len(value) >= _SHORTEST]
    found: list[str] = []
    for word in words:
        flag = found[-1].lstrip("-") if found and found[-1].startswith("--") else ""
        if "=" not in flag and is_secret(flag) and not word.startswith("--"):
            word = HIDDEN
        word = _ASSIGNED.sub(_hide, _without_marked(word))
        for value in known:
            word = word.replace(value, HIDDEN)
        found.append(word)
    return found


def hidden_text(text: str) -> str:
    """A line of a log without what looks like a secret."""
    text = _FLAG.sub(
        lambda match: match[1] + (HIDDEN if is_secret(match[2]) else match[3]), _without_marked(text)
    )
    return _ASSIGNED.sub(_hide, text)


def _without_marked(text: str) -> str:
    """Without passwords in addresses and what follows Bearer."""
    return _BEARER.sub(rf"\1{HIDDEN}", _IN_URL.sub(HIDDEN, text))


def _hide(match: "re.Match[str]") -> str:
    quote, name, between, mark, _ = match.groups()
    return f"{quote}{name}{quote}{between}{mark}{HIDDEN}{mark}" if is_secret(name.lstrip("-")) else match[0]


def require_secrets(options: Mapping[str, Any]) -> None:
    """Raise if an option of an environment is a secret of a saved run that was not given again."""
    for name, value in options.items():
        if isinstance(value, str) and HIDDEN in value:
            raise ConfigError(
                f"the option {name} of the environment is a secret, which is not saved with a run; give it again as "
                f"--env_options.{name} VALUE, in Python env_options={{{name!r}: ...}}"
            )
