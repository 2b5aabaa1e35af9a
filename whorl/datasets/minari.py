"""Datasets in Minari's format (https://minari.farama.org): opened by id or folder, and written episode by episode.

ROOT/whorl/pendulum/sac-v0/data/main_data.hdf5    the id whorl/pendulum/sac-v0; ROOT is MINARI_DATASETS_PATH or
ROOT/whorl/pendulum/sac-v0/data/metadata.json     ~/.minari/datasets
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from whorl.core import messages
from whorl.core.errors import ConfigError, WhorlError, missing_extra, nearest
from whorl.core.files import expanded, reason

DATA, METADATA = "data", "metadata.json"
REACH_SECONDS = 10.0
"""within which the server of datasets has to answer"""


@dataclass
class Episode:
    """One episode as the environment gave it: one observation more than actions, the final one."""

    seed: int | None = None
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    infos: dict[str, list[Any]] = field(default_factory=dict)
    """arrays by name, as many as observations"""


def open_dataset(name: str) -> Any:
    """The `MinariDataset` in a folder, or with an id; one that is not on this machine is downloaded."""
    minari = _library()
    path = expanded(name)
    folder = next((place for place in (path, path / DATA) if (place / METADATA).is_file()), None)
    if folder is not None:
        return _opened(name, minari.MinariDataset, folder)
    if path.is_dir() or name.startswith((".", "/", "~")):
        raise ConfigError(
            f"there is no dataset in {name!r}: {METADATA} is missing; name a folder of Minari's format"
        )
    known = minari.list_local_datasets()
    if name in known:
        return _opened(name, minari.load_dataset, name)
    hint = nearest(name, known) if known else "there are none on this machine"
    if not re.search(r"-v\d+$", name):  # Minari's server has none without
        raise ConfigError(f"there is no dataset {name!r}: neither a folder nor an id with a version; {hint}")
    start = (
        f"the dataset {name!r} is neither a folder nor on this machine ({hint}), and it can't be downloaded"
    )
    if problem := _unreachable():
        raise ConfigError(f"{start}: {problem}")
    try:
        return minari.load_dataset(name, download=True)
    except Exception as error:  # the network, the server, the disk, or a name that does not exist
        raise ConfigError(f"{start}: {_first_line(error)}") from None


def _unreachable() -> str:
    """Why Minari's server can't be asked; its client would retry for half a minute first, with a line each time."""
    if not os.environ.get("MINARI_REMOTE", "hf://").startswith("hf://"):
        return ""
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session
    except ImportError:  # Minari says what to install
        return ""
    try:
        status = get_session().head(constants.ENDPOINT, timeout=REACH_SECONDS).status_code
    except Exception as error:  # those of the HTTP client, which is another one in each major version
        return f"the Hugging Face hub can't be reached ({_first_line(error)})"
    return f"the Hugging Face hub answers with status {status}" if status >= 500 else ""


def dataset_path(id: str) -> Path:
    """Where Minari looks for a dataset with this id."""
    _library()
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path(id))


def dataset_name(folder: Path) -> str:
    """The id of a dataset in a folder of its own."""
    return re.sub(r"[^-\w]", "_", folder.absolute().name) or "dataset"


def free_id(stem: str) -> str:
    """The id with the first version that is not taken: STEM-v0, STEM-v1, …"""
    stem = re.sub(r"[^-\w/]", "_", stem)
    return next(id for number in range(10**6) if not dataset_path(id := f"{stem}-v{number}").exists())


def _storable(env_spec: Any) -> Any:
    """The registration of an environment, or None where a function makes it, which can't be stored as text."""
    try:
        if env_spec is not None:
            env_spec.to_json()
    except (TypeError, ValueError) as error:
        messages.warn(f"the dataset does not say how to make its environment: {error}")
        return None
    return env_spec


class Writer:
    """Writes episodes into a new dataset, whose folder appears when it is complete.

    Args:
        id: its Minari id.
        folder: where it is written; default: where Minari finds the id.
        about: entries of its metadata, such as `algorithm_name`.
    """

    def __init__(
        self,
        id: str,
        folder: Path | None,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        env_spec: Any = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        minari = _library()
        from minari.dataset.minari_storage import MinariStorage

        # Absolute, because Minari's storage looks for its own files in a relative path twice.
        self.id, self.folder = id, (folder or dataset_path(id)).absolute()
        self._spaces = observation_space, action_space
        self._parts = self.folder.with_name(f".{self.folder.name}.partial")
        if (self.folder / DATA).exists():
            raise ConfigError(
                f"there is a dataset in {self.folder} already; name another folder, or delete it"
            )
        try:
            shutil.rmtree(self._parts, ignore_errors=True)
            self._parts.mkdir(parents=True)
        except OSError as error:
            raise WhorlError(f"the dataset can't be written to {self.folder}: {reason(error)}") from None
        # Images are stored as they are: JPEG would change them.
        self._storage = MinariStorage.new(
            self._parts / DATA, observation_space, action_space, _storable(env_spec), jpeg_encoding=False
        )
        self._storage.update_metadata(
            {"dataset_id": id, "minari_version": minari.__version__, **(about or {})}
        )

    def add(self, episode: Episode) -> None:
        """Append an episode."""
        _library()
        from minari.data_collector import EpisodeBuffer

        observation_space, action_space = self._spaces
        buffer = EpisodeBuffer(
            seed=episode.seed,
            observations=collate(observation_space, episode.observations),
            actions=collate(action_space, episode.actions),
            rewards=np.asarray(episode.rewards, np.float64),
            terminations=np.asarray(episode.terminations, bool),
            truncations=np.asarray(episode.truncations, bool),
            infos={name: np.stack(values) for name, values in episode.infos.items()},
        )
        try:
            self._storage.update_episodes([buffer])
        except OSError as error:
            raise WhorlError(f"the dataset can't be written to {self.folder}: {reason(error)}") from None

    def finish(self) -> Path:
        """The folder, which now has all episodes."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self._parts / DATA).rename(self.folder / DATA)
        except OSError as error:
            raise WhorlError(f"the dataset can't be written to {self.folder}: {reason(error)}") from None
        self.discard()
        return self.folder

    def discard(self) -> None:
        """Delete what is not complete."""
        shutil.rmtree(self._parts, ignore_errors=True)


def collate(space: spaces.Space, values: Sequence[Any], for_policy: bool = False) -> Any:
    """Members of a space as one member with a leading axis in every array.

    Args:
        for_policy: a Box without axes gets one, as policies read it.
    """
    if isinstance(space, spaces.Dict):
        return {
            key: collate(child, [value[key] for value in values], for_policy)
            for key, child in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            collate(child, [value[i] for value in values], for_policy) for i, child in enumerate(space.spaces)
        )
    scalar = for_policy and isinstance(space, spaces.Box) and space.shape == ()
    return np.stack(
        [np.asarray(value, space.dtype).reshape((1,) if scalar else space.shape) for value in values]
    )


def _opened(name: str, make: Any, *given: Any) -> Any:
    try:
        return make(*given)
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise ConfigError(f"the dataset {name!r} can't be read: {_first_line(error)}") from None


def _library() -> Any:
    try:
        import h5py  # noqa: F401 - Minari's files
        import minari
    except ImportError as error:
        raise missing_extra(error.name or "minari", "datasets") from None
    return minari


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
