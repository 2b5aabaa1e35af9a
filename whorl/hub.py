"""Trained policies on the Hugging Face hub: `push` a run with a model card and a GIF, `pull` one into `runs/`.

A repository has the layout of a run folder: config.yaml, metrics.jsonl, and one checkpoint with the policy alone. What
is pulled is checked against its checksums and read without running code from it. The token is that of huggingface_hub's
own login (`hf auth login`, or HF_TOKEN); it is neither read nor stored here.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from whorl.api import evaluate, restore
from whorl.box.names import find_folder
from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError, missing_extra
from whorl.core.version import __version__
from whorl.run.checkpointing import find_checkpoint
from whorl.run.evaluate import Evaluation
from whorl.settings.behaviors import BEHAVIORS
from whorl.state import checkpoint
from whorl.state.runfolder import RUNS

CARD, RESULTS, VIDEO, METRICS = "README.md", "results.json", "replay.gif", "metrics.jsonl"
PULLED = re.compile(
    r"README\.md|results\.json|replay\.gif|metrics\.jsonl|config\.yaml"
    r"|checkpoint_[1-9][0-9]*/(policy\.pt|checkpoint\.pt|config\.yaml|metadata\.yaml|code(/[A-Za-z_]\w*)+\.py)",
    re.ASCII,
)
"""files that are downloaded; whatever else is in a repository stays there"""
PRIVATE = re.compile(
    r"runs|name|tag|loggers|load_checkpoint_dir|load_model|use_wandb|(wandb|mlflow|http)_\w+"
)
"""settings that are not uploaded, and have their defaults in a run that is pulled"""
KEPT = ("iterations", "steps", "episodes", "mean_return", "wall_time")
"""entries of a checkpoint's metadata about a policy"""
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def push(
    run: str | Path,
    repo: str,
    *,
    best: bool = False,
    episodes: int = 20,
    private: bool = False,
    code: bool = False,
    video: bool = True,
    trust: tuple[str, ...] = (),
) -> str:
    """Upload the policy of a run to the Hugging Face hub, and return the address of its page.

    Args:
        repo: OWNER/NAME, created where it does not exist.
        best: the best policy in evaluations instead of the newest.
        episodes: evaluated for the model card; the first is recorded.
        code: upload the source files of networks and other parts of your own, too.
    """
    _check_repo(repo)
    api = _api()
    folder = find_folder(run)
    if best:
        folder = checkpoint.best_folder(folder)
    with tempfile.TemporaryDirectory() as temp:
        prepare(folder, Path(temp), repo, episodes, code, video, trust)
        with _explaining(repo, "write"):
            api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo, folder_path=temp, commit_message="Upload a policy trained with Whorl"
            )
    return f"{api.endpoint}/{repo}"


def prepare(
    folder: Path, into: Path, repo: str, episodes: int, code: bool, video: bool, trust: tuple[str, ...]
) -> None:
    """Write what `push` uploads of a run or checkpoint."""
    found = find_checkpoint(folder)
    if BEHAVIORS in found.policy:
        raise WhorlError(f"{folder} has several behaviours, whose policies can't be pushed")
    run_dir = found.folder.parent
    checkpoint.save(
        into,
        int(found.metadata.get("k") or 1),
        {},
        {**found.policy, "config": _public(found.policy["config"])},
        _public(found.config),
        {name: found.metadata[name] for name in KEPT if name in found.metadata} | {"metrics_offset": 0},
        None,
        found.code if code else {},
    )
    shutil.copyfile(next(into.glob("checkpoint_*")) / checkpoint.CONFIG, into / checkpoint.CONFIG)
    if (run_dir / METRICS).is_file():
        shutil.copyfile(run_dir / METRICS, into / METRICS)
    played = _played(found.folder, into / VIDEO if video else None, episodes, trust)
    numbers = {
        "mean_reward": played.mean_return,
        "std_reward": played.std,
        "episodes": episodes,
        "steps": int(found.metadata["steps"]),
        "algorithm": str(found.config["algorithm"]),
        "env": str(found.config["env"]),
    }
    (into / RESULTS).write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    card = model_card(repo, numbers, found.config, (into / VIDEO).is_file())
    (into / CARD).write_text(card, "utf-8")


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that name folders, projects and servers of the user; secrets are never saved."""
    return {name: value for name, value in config.items() if not PRIVATE.fullmatch(name)}


def _played(folder: Path, video: Path | None, episodes: int, trust: tuple[str, ...]) -> Evaluation:
    """Evaluate a policy and record it, where its environment can be rendered."""
    try:
        return evaluate(folder, episodes, video=video, trust=trust)
    except WhorlError:
        if video is None:
            raise
        return evaluate(folder, episodes, trust=trust)


def model_card(repo: str, numbers: Mapping[str, Any], config: Mapping[str, Any], video: bool) -> str:
    """The page of a repository: front matter that the hub reads, score, GIF, how to use it, settings."""
    algorithm, env = numbers["algorithm"], numbers["env"]
    score = f"{numbers['mean_reward']:.2f} +/- {numbers['std_reward']:.2f}"
    front = {
        "library_name": "whorl",
        "tags": [env, algorithm, "reinforcement-learning", "deep-reinforcement-learning", "whorl"],
        "pipeline_tag": "reinforcement-learning",
        "model-index": [
            {
                "name": repo.partition("/")[2],
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"name": env, "type": env},
                        "metrics": [
                            {"type": "mean_reward", "value": score, "name": "mean_reward", "verified": False}
                        ],
                    }
                ],
            }
        ],
    }
    lines = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {algorithm} on {env}",
        f"Mean reward **{score}** over {numbers['episodes']} episodes with deterministic actions, after "
        f"{numbers['steps']:,} steps of training (Whorl {__version__}, seed {config.get('seed')}).",
        *([f"![An episode]({VIDEO})"] if video else []),
        "## Use it",
        f"```bash\npip install 'whorl-rl[hub]'\nwhorl pull {repo}\nwhorl eval {local_name(repo)}\n```",
        f'```python\nimport whorl\n\npolicy = whorl.restore(whorl.pull("{repo}"))\naction = policy.act(obs)\n```',
        "Loading the policy runs no code of this repository. All settings are in config.yaml.",
    ]
    return "\n\n".join(lines) + "\n"


def pull(repo: str, runs: str | Path = RUNS, *, revision: str | None = None) -> Path:
    """Download a policy from the Hugging Face hub into a new run folder, and return that folder.

    No code of the repository is run: files are checked against their checksums, and read as data.
    """
    _check_repo(repo)
    api = _api()
    root = files.expanded(runs)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"can't create {root}: {files.reason(error)}") from error
    final = next(path for path in files.free_names(root / local_name(repo)) if not path.exists())
    with files.scratch(final) as temp:
        with _explaining(repo, "read"):
            info = api.model_info(repo, revision=revision)
            names = [file.rfilename for file in info.siblings or () if PULLED.fullmatch(file.rfilename)]
            if not any(name.endswith(f"/{checkpoint.POLICY}") for name in names):
                raise CheckpointError(f"{repo} holds no policy of Whorl; repositories of `whorl push` do")
            api.snapshot_download(repo, revision=info.sha, local_dir=temp, allow_patterns=names)
        shutil.rmtree(temp / ".cache", ignore_errors=True)
        try:
            restore(checkpoint.checkpoints(temp)[0])
        except CheckpointError as error:
            raise CheckpointError(f"{repo} can't be used: {error.message.replace(f'{temp}/', '')}") from None
        except ConfigError:
            pass  # it names code of its owner, which is not run: using the policy will ask for trust
        temp.rename(final)
    return final


def local_name(repo: str) -> str:
    """The name of the run folder of a repository."""
    return repo.replace("/", "_")


def _check_repo(repo: str) -> None:
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise ConfigError(f"{repo!r} is not a repository of the hub; write OWNER/NAME, as in me/ppo-cartpole")


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise missing_extra("huggingface_hub", "hub") from None
    return HfApi(library_name="whorl", library_version=__version__)


@contextmanager
def _explaining(repo: str, access: str) -> Iterator[None]:
    """Errors of the hub in one sentence, without addresses that may hold a token."""
    from huggingface_hub import errors

    # The base class is that of the HTTP client, which is another one in each major version of huggingface_hub.
    client_error: Any = errors.HfHubHTTPError.__bases__[0]
    login = "log in with 'hf auth login' or set HF_TOKEN"
    try:
        yield
    except errors.LocalTokenNotFoundError:
        raise WhorlError(f"no token of the Hugging Face hub was found; {login}") from None
    except errors.GatedRepoError:
        raise WhorlError(f"{repo} is restricted; ask for access on its page, and {login}") from None
    except errors.RevisionNotFoundError:
        raise WhorlError(f"{repo} has no such revision; leave it out for the newest") from None
    except errors.RepositoryNotFoundError:
        raise WhorlError(
            f"there is no {repo} on the hub, or it is private; check the name, or {login}"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise WhorlError(
                f"the hub does not let you {access} {repo}; {login} with {access} access"
            ) from None
        raise WhorlError(f"the hub answered {repo} with status {status}; try again later") from None
    except (client_error, OSError) as error:
        if getattr(error, "errno", None):
            raise WhorlError(f"files of {repo} can't be written: {files.reason(error)}") from error
        raise WhorlError("the Hugging Face hub can't be reached; check the network and HF_ENDPOINT") from None
