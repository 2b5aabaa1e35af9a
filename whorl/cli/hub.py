"""`whorl push` and `whorl pull`: policies on the Hugging Face hub."""

from dataclasses import dataclass
from typing import Annotated, Any

from whorl.cli.command import command, commands, own_flags, parser_of, wants_help
from whorl.core.errors import ConfigError
from whorl.settings.schema import Range


@dataclass(frozen=True)
class PushFlags:
    """Flags of `whorl push`."""

    best: bool = False
    """the best policy in evaluations instead of the newest"""
    episodes: Annotated[int, Range(1, 10**6)] = 20
    """episodes that are evaluated for the model card; the first is recorded"""
    private: bool = False
    """create a private repository"""
    code: bool = False
    """upload the source files of networks and other parts of your own, too"""
    video: bool = True
    """record an episode"""
    trust: tuple[str, ...] = ()
    """your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code saved with
    the run (code:HASH)"""


@dataclass(frozen=True)
class PullFlags:
    """Flags of `whorl pull`."""

    runs: str = "runs"
    """folder in which the run folder is created"""
    revision: str = ""
    """branch, tag or commit; empty: the newest"""


@command("push RUN OWNER/NAME [--best] [--private]", PushFlags)
def push(words: list[str]) -> int:
    """upload the policy of a run to the Hugging Face hub, with a model card and a GIF"""
    read = _read("push", words, 2, PushFlags)
    if read is None:
        return 0
    (run, repo), own = read
    from whorl.hub import push as push_run

    print(
        push_run(
            run,
            repo,
            best=own.best,
            episodes=own.episodes,
            private=own.private,
            code=own.code,
            video=own.video,
            trust=own.trust,
        )
    )
    return 0


@command("pull OWNER/NAME [--runs FOLDER]", PullFlags)
def pull(words: list[str]) -> int:
    """download a policy from the Hugging Face hub into the folder of runs"""
    read = _read("pull", words, 1, PullFlags)
    if read is None:
        return 0
    (repo,), own = read
    from whorl.hub import pull as pull_repo

    print(pull_repo(repo, own.runs, revision=own.revision or None))
    return 0


def _read(name: str, words: list[str], number: int, flags: type) -> tuple[list[str], Any] | None:
    """The names and flags of a command; None where help was asked for and shown."""
    parser = parser_of(name)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return None
    names, values = parser.read(words)
    own = own_flags(flags, values)
    if len(names) != number:
        wanted = f"{number} name{'' if number == 1 else 's'}"
        raise ConfigError(f"{name} takes {wanted}, but got {len(names)}: whorl {commands()[name].usage}")
    return names, own
