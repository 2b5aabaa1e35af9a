"""Checkpoints of all behaviours of a run together."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from whorl.core.errors import CheckpointError
from whorl.data.experience import Store
from whorl.run.behaviors.parts import BehaviorParts, Member
from whorl.run.checkpointing import Checkpointing, earlier, find_checkpoint, load_weights
from whorl.run.loop import Counters
from whorl.run.trust import own_code
from whorl.settings.behaviors import BEHAVIORS
from whorl.state import checkpoint
from whorl.state.runfolder import resolve_run


class Stores:
    """The files of all replay buffers."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores

    def names(self) -> list[str]:
        return [name for store in self._stores for name in store.names()]

    def sweep(self, needed: Any) -> None:
        for store in self._stores:
            store.sweep(needed)

    def close(self) -> None:
        for store in self._stores:
            store.close()


class BehaviorCheckpointing(Checkpointing):
    """Checkpoints of all behaviours together."""

    parts: BehaviorParts  # type: ignore[assignment]  # has what saving needs

    def __init__(self, parts: BehaviorParts, counters: Counters) -> None:
        super().__init__(parts, counters)  # type: ignore[arg-type]

    def open(self, run_dir: Path) -> None:
        if self.run_dir is None:
            self.run_dir, self.code = run_dir, own_code(self.parts.settings)
            stores = [self._open_store(run_dir / checkpoint.ROWS, member) for member in self.parts.members]
            found = [store for store in stores if store is not None]
            self.store = Stores(found) if found else None
            self._sweep()

    def _open_store(self, rows: Path, member: Member) -> Store | None:
        """The files of one replay buffer, in a folder of its own."""
        folder, keep = rows / quote(member.name, safe=" "), self.parts.settings.run.save_model
        if member.parts.agent.off_policy:
            rows.mkdir(exist_ok=True)
        member.checkpointing.store = member.parts.experience.open_store(folder, keep)
        return member.checkpointing.store

    def start_from(self, run: str, strict: bool) -> list[str]:
        assert self.run_dir is not None
        found = find_checkpoint(resolve_run(run, Path(self.parts.settings.run.runs)))
        messages = []
        for member in self.parts.members:
            own = of_behavior(found, member.name)
            messages.append(load_weights(member.parts.agent, own, strict))
            before: dict[str, Any] = own.state["counters"] if own.state else {"steps": 0}
            steps = before["steps"] + before.get("earlier", {}).get("steps", 0)
            member.counters.earlier = {"steps": float(steps)}
            if member.checkpointing.store is not None:
                messages.append(member.checkpointing.take_rows(own, self.run_dir, strict))
        with checkpoint.reading(found.folder, checkpoint.METADATA):
            self.counters.earlier = earlier(found)
        return [message for message in messages if message]

    def state(self, restart: bool = False) -> dict[str, Any]:
        parts = self.parts
        return {
            BEHAVIORS: {member.name: member.checkpointing.state(restart) for member in parts.members},
            "env": parts.env.snapshot() if parts.env.snapshots and not restart else {},
            "streams": parts.streams.state_dict(),
            "counters": self.counters.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        parts, shared = self.parts, self.parts.acting.collector
        parts.streams.load_state_dict(state["streams"])
        self.counters.load_state_dict(state["counters"])
        members = [state[BEHAVIORS][member.name] for member in parts.members]
        self.counters.resets += any(member["collector"] == {} for member in members)  # with other seeds
        if state["env"]:
            shared.restore(state["env"])
        else:
            parts.reset(self.counters.resets)
            self._reset_at = self.counters.iteration
        for member, own in zip(parts.members, members):
            member.checkpointing.load_state(own)

    def policy(self) -> dict[str, Any]:
        return {BEHAVIORS: {member.name: member.checkpointing.policy() for member in self.parts.members}}

    def normalizer(self) -> dict[str, Any]:
        return {
            f"{member.name}.{key}": values
            for member in self.parts.members
            for key, values in member.checkpointing.normalizer().items()
        }

    def _drop_rollout(self) -> None:
        for member in self.parts.members:
            member.collector.episode_statistics.drain()


def of_behavior(found: checkpoint.Loaded, name: str) -> checkpoint.Loaded:
    """A checkpoint of several behaviours, as one of a run with this one alone."""
    policies = found.policy.get(BEHAVIORS, {})
    if name not in policies:
        has = ", ".join(policies) or "one policy"
        raise CheckpointError(
            f"{found.folder} has no behaviour {name!r}, whose weights are wanted; it has {has}"
        )
    state = found.state[BEHAVIORS][name] if found.state else {}
    return replace(found, policy=policies[name], state=state)
