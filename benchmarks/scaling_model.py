"""Actors, queues and a learner as a discrete-event model: the throughput of so many actors, and what limits it.

It follows the loop of `whorl.run`: an actor rolls T rows of its environments while a buffer is free, and takes the
newest weights that its node has before each rollout. Its trajectory crosses the node's link and the learner's, and
waits. The learner publishes, takes one trajectory for each actor in the order in which they come, and updates; from
replay, it updates first. Several learners average gradients; they are alike, so one of them is simulated, with its
share of the actors.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

FULL = 0.99
"""from this share of the time on a resource counts as full; of several the first in `Outcome.busy` is named"""


@dataclass(frozen=True)
class Costs:
    """What things cost on some machine: seconds of one core, and bytes. `scaling.py calibrate` measures them."""

    env: float
    """seconds of a step for each environment; where environments are stepped as one batch, next to nothing"""
    act: float
    """seconds of a row, whatever the environments: acting, the loop around it, and a step of no environments"""
    act_env: float
    """seconds of a row and environment, besides the step"""
    rollout: float
    """seconds of a rollout, whatever its rows: weights are read, counts are drained"""
    row_bytes: float
    weight_bytes: float
    """of what actors are sent"""
    gradient_bytes: float
    """of what learners average"""
    update: float
    """seconds of an update, whatever its rows"""
    update_row: float
    publish_byte: float
    """seconds of the learner for each byte of the weights"""
    take: float
    """seconds of the learner for a trajectory, whatever its size"""
    take_byte: float


@dataclass(frozen=True)
class Cluster:
    """How actors and learners are laid out, and what they do."""

    num_envs: int
    """of each actor"""
    steps: int
    """rows of a rollout"""
    cores: int
    """of a node"""
    actors_per_node: int = 0
    """0: one machine, on whose cores the learner runs too"""
    network: float = inf
    """bytes a second, each way, of every node's link and of every learner's; inf: shared memory"""
    latency: float = 0.0
    """seconds"""
    publish_node: float = 0.0
    """seconds of the learner for each node that is told of new weights"""
    learners: int = 1
    buffers: int = 2
    """trajectories of an actor that the learner has not taken yet"""
    env_times: Literal["constant", "exponential"] = "constant"
    ratio: float = 0.0
    """updates per environment step, from replay that lies beside the learners; 0: one update per batch of
    trajectories"""
    batch_size: int = 0
    """rows of an update from replay, over all learners"""


@dataclass(frozen=True)
class Outcome:
    """What a fleet did once it had settled."""

    steps_per_second: float
    """rows of all environments, those in which an episode opens included"""
    busy: dict[str, float]
    """share of the time in which each resource had work"""
    learner: dict[str, float]
    """share of the learner's time by what it did"""
    cores: float
    """at work on average, on the nodes of one learner"""
    waiting: float
    """share of the actors' time in which all their buffers were full"""
    lag: float
    """versions between the weights that acted and those that learn, on average"""

    @property
    def bottleneck(self) -> str:
        """The resource with the least time to spare."""
        name = next((name for name, share in self.busy.items() if share >= FULL), "")
        name = name or max(self.busy, key=lambda resource: self.busy[resource])
        if name != "learner":
            return name
        part = max(("update", "take", "publish"), key=lambda what: self.learner[what])
        return {
            "update": "learner: updates",
            "take": "learner: taking trajectories",
            "publish": "learner: publishing",
        }[part]


class Bill:
    """Costs of whole pieces of work: a rollout, a trajectory, an epoch."""

    def __init__(self, costs: Costs, cluster: Cluster, actors: int) -> None:
        self.learners = min(cluster.learners, actors)
        if actors % self.learners:
            fewer = actors - actors % self.learners
            more = fewer + self.learners
            raise ValueError(
                f"{actors} actors can't be shared evenly by {self.learners} learners; use {fewer} or {more}"
            )
        self.actors = actors // self.learners
        """of each learner"""
        self.actors_per_node = cluster.actors_per_node or self.actors
        self.nodes = -(-self.actors // self.actors_per_node)
        self.rows = cluster.steps * cluster.num_envs
        """of a trajectory"""
        self.envs = self.rows * costs.env
        self.acting = costs.rollout + cluster.steps * (costs.act + costs.act_env * cluster.num_envs)
        self.slab_bytes = (cluster.steps + 1) * cluster.num_envs * costs.row_bytes
        self.slab_crossing = self.slab_bytes / cluster.network
        self.weights_crossing = costs.weight_bytes / cluster.network
        self.take = costs.take + costs.take_byte * self.slab_bytes
        self.publish = costs.publish_byte * costs.weight_bytes + cluster.publish_node * self.nodes
        share = (self.learners - 1) / self.learners
        # A ring: each learner sends and receives the gradient twice, but for its own part.
        reducing = 2 * share * costs.gradient_bytes / cluster.network
        reducing += 2 * (self.learners - 1) * cluster.latency
        count, rows = 1.0, float(self.actors * self.rows)
        if cluster.ratio:
            count, rows = cluster.ratio * rows * self.learners, cluster.batch_size / self.learners
        self.update = count * (costs.update + costs.update_row * rows + reducing)

    @property
    def roll(self) -> float:
        return self.envs + self.acting

    @property
    def learner(self) -> float:
        """seconds of an epoch"""
        return self.publish + self.actors * self.take + self.update


def bounds(costs: Costs, cluster: Cluster, actors: int) -> dict[str, float]:
    """Steps a second that each resource would allow if it were the only one: no model can have more."""
    bill = Bill(costs, cluster, actors)
    epoch = bill.actors * bill.rows * bill.learners
    whole, rest = divmod(bill.actors, bill.actors_per_node)
    rolling = whole * min(bill.actors_per_node, cluster.cores) + min(rest, cluster.cores)
    found = {
        "actors' cores": rolling * bill.rows * bill.learners / bill.roll,
        "learner": epoch / bill.learner,
        "link in": bill.rows * bill.learners / bill.slab_crossing if bill.slab_crossing else inf,
    }
    if not cluster.actors_per_node:
        both = cluster.cores * epoch / (bill.actors * bill.roll + bill.learner)
        found["actors' cores"] = min(found["actors' cores"], both)
    return found


class Link:
    """One thing after another, in the order in which they come."""

    def __init__(self) -> None:
        self.free = 0.0
        self.given = 0.0

    def send(self, now: float, seconds: float) -> float:
        """When it will have crossed."""
        self.free = max(self.free, now) + seconds
        self.given += seconds
        return self.free

    def busy(self, now: float) -> float:
        return self.given - max(0.0, self.free - now)


class Node:
    """Cores that whoever has work there shares evenly, with the weights that have arrived.

    `clock` is how much each piece of work has got since the beginning; it slows down where there are more than cores.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.version = 0
        self.link = Link()
        self.work: list[tuple[float, int, Callable[..., None], Any]] = []
        self.clock = self.at = self.used = 0.0
        self.due = inf
        """when the first of the work ends, as things stand"""

    def advance(self, now: float) -> None:
        count = len(self.work)
        if count > self.cores:
            self.clock += (now - self.at) * self.cores / count
        else:
            self.clock += now - self.at
        self.used += (now - self.at) * min(count, self.cores)
        self.at = now

    def first_end(self) -> float:
        if not self.work:
            return inf
        return self.at + max(0.0, self.work[0][0] - self.clock) * max(1.0, len(self.work) / self.cores)


class Model:
    """One learner with its actors."""

    def __init__(self, costs: Costs, cluster: Cluster, actors: int, seed: int = 0) -> None:
        self.costs, self.cluster, self.bill = costs, cluster, Bill(costs, cluster, actors)
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], Any]] = []
        self.count = 0
        self.nodes = [Node(cluster.cores) for _ in range(self.bill.nodes)]
        self.link_in, self.link_out = Link(), Link()
        self.version = self.iterations = self.lags = 0
        self.free = [cluster.buffers] * self.bill.actors
        self.idle = [True] * self.bill.actors
        self.idlers, self.idled, self.idled_at = self.bill.actors, 0.0, 0.0
        self.queue: deque[tuple[int, int]] = deque()
        """actor and version of the trajectories that have arrived"""
        self.behind: deque[Node] = deque()
        """nodes that the newest weights are still to be sent to"""
        self.sending = False
        self.spent = {"update": 0.0, "take": 0.0, "publish": 0.0}
        self.waits = False
        self.learner = self._learn()
        for actor in range(self.bill.actors):
            self._roll(actor)
        self._go_on()

    def run(self, epochs: int) -> None:
        """Go on until the learner has made so many."""
        while self.iterations < epochs:
            self.now, _, act, argument = heapq.heappop(self.events)
            act(argument)

    def _at(self, when: float, act: Callable[..., None], argument: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, act, argument))

    # Cores

    def _work(self, node: Node, seconds: float, then: Callable[..., None], argument: Any) -> None:
        node.advance(self.now)
        self.count += 1
        heapq.heappush(node.work, (node.clock + seconds, self.count, then, argument))
        self._look_again(node)

    def _look_again(self, node: Node) -> None:
        due = node.first_end()
        if due != node.due:
            node.due = due
            if due < inf:
                self._at(due, self._worked, node)

    def _worked(self, node: Node) -> None:
        if self.now != node.due:
            return  # the work ends at another time by now
        node.advance(self.now)
        node.clock = max(node.clock, node.work[0][0])  # not a hair before it
        _, _, then, argument = heapq.heappop(node.work)
        node.due = inf
        self._look_again(node)
        then(argument)

    # Actors

    def _node(self, actor: int) -> Node:
        return self.nodes[actor // self.bill.actors_per_node]

    def _roll(self, actor: int) -> None:
        self.free[actor] -= 1
        self._set_idle(actor, False)
        envs = self.bill.envs
        if self.cluster.env_times == "exponential":
            envs = self.random.gammavariate(self.bill.rows, self.costs.env)  # the sum of so many
        node = self._node(actor)
        self._work(node, self.bill.acting + envs, self._rolled, (actor, node.version))

    def _rolled(self, trajectory: tuple[int, int]) -> None:
        actor = trajectory[0]
        if self.bill.slab_crossing:
            crossed = self._node(actor).link.send(self.now, self.bill.slab_crossing)
            self._at(crossed + self.cluster.latency, self._crosses, trajectory)
        else:
            self._arrived(trajectory)
        if self.free[actor]:
            self._roll(actor)
        else:
            self._set_idle(actor, True)

    def _crosses(self, trajectory: tuple[int, int]) -> None:
        self._at(self.link_in.send(self.now, self.bill.slab_crossing), self._arrived, trajectory)

    def _arrived(self, trajectory: tuple[int, int]) -> None:
        self.queue.append(trajectory)
        if self.waits:
            self.waits = False
            self._go_on()

    def _released(self, actor: int) -> None:
        self.free[actor] += 1
        if self.idle[actor]:
            self._roll(actor)

    def _set_idle(self, actor: int, idle: bool) -> None:
        if self.idle[actor] != idle:
            self._count_idlers()
            self.idle[actor] = idle
            self.idlers += 1 if idle else -1

    def _count_idlers(self) -> None:
        self.idled += self.idlers * (self.now - self.idled_at)
        self.idled_at = self.now

    # Learner

    def _learn(self) -> Iterator[tuple[str, float]]:
        """What the learner does next, and for how long; "" is to wait for a trajectory."""
        bill = self.bill
        while True:
            self.version += 1
            yield "publish", bill.publish
            self._send_weights()
            if self.cluster.ratio:
                yield "update", bill.update
            for _ in range(bill.actors):
                if not self.queue:
                    yield "", 0.0
                actor, version = self.queue.popleft()
                yield "take", bill.take
                self.lags += self.version - version
                self._at(self.now + self.cluster.latency, self._released, actor)
            if not self.cluster.ratio:
                yield "update", bill.update
            self.iterations += 1

    def _go_on(self, done: tuple[str, float] | None = None) -> None:
        if done is not None:
            self.spent[done[0]] += self.now - done[1]
        what, seconds = next(self.learner)
        if not what:
            self.waits = True
        elif not self.cluster.actors_per_node:
            self._work(self.nodes[0], seconds, self._go_on, (what, self.now))
        else:
            self._at(self.now + seconds, self._go_on, (what, self.now))

    # Weights

    def _send_weights(self) -> None:
        if not self.bill.weights_crossing:
            for node in self.nodes:
                node.version = self.version
            return
        waiting = set(map(id, self.behind))
        self.behind.extend(node for node in self.nodes if id(node) not in waiting)
        if not self.sending:
            self._send_next()

    def _send_next(self, _: None = None) -> None:
        """A node that was not reached in time gets the newest version, and never sees those between."""
        self.sending = bool(self.behind)
        if self.sending:
            node, crossed = self.behind.popleft(), self.link_out.send(self.now, self.bill.weights_crossing)
            self._at(crossed, self._send_next, None)
            self._at(crossed + self.cluster.latency, self._renewed, (node, self.version))

    def _renewed(self, told: tuple[Node, int]) -> None:
        told[0].version = told[1]

    def totals(self) -> dict[str, float]:
        """What has added up so far."""
        for node in self.nodes:
            node.advance(self.now)
        self._count_idlers()
        found = {f"learner {what}": seconds for what, seconds in self.spent.items()}
        return {
            **found,
            "time": self.now,
            "n_epochs": self.iterations,
            "lag": self.lags,
            "idle": self.idled,
            "cores": sum(node.used for node in self.nodes),
            "nodes' links": sum(node.link.busy(self.now) for node in self.nodes),
            "link in": self.link_in.busy(self.now),
            "weights out": self.link_out.busy(self.now),
        }


def simulate(
    costs: Costs, cluster: Cluster, actors: int, epochs: int = 0, warm_up: int = 12, seed: int = 0
) -> Outcome:
    """What so many actors would do.

    Args:
        epochs: how many are looked at after `warm_up` others; 0: as many as about 40,000 trajectories make, and at
            least 6.
    """
    epochs = epochs or max(6, min(400, 40_000 // actors))
    model = Model(costs, cluster, actors, seed)
    model.run(warm_up)
    before = model.totals()
    model.run(warm_up + epochs)
    after = model.totals()
    spent = {name: after[name] - before[name] for name in after}
    seconds, bill = spent["time"], model.bill
    trajectories = epochs * bill.actors
    learner = {what: spent[f"learner {what}"] / seconds for what in model.spent}
    waiting = spent["idle"] / (bill.actors * seconds)
    cores = spent["cores"] / seconds
    return Outcome(
        steps_per_second=trajectories * bill.rows * bill.learners / seconds,
        busy={
            # Actors that never wait are at their limit even where cores are left over.
            "actors' cores": max(1 - waiting, cores / (bill.nodes * cluster.cores)),
            "learner": sum(learner.values()),
            "link in": spent["link in"] / seconds,
            "nodes' links": spent["nodes' links"] / (bill.nodes * seconds),
            "weights out": spent["weights out"] / seconds,
        },
        learner=learner,
        cores=cores,
        waiting=waiting,
        lag=spent["lag"] / trajectories,
    )
