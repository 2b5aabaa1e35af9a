"""A stand-in for a Unity player: speaks ML-Agents' protocol over gRPC, with tasks and physics of its own.

    python tests/unity/player.py --mlagents-port 5005 --task ball --agents 16

As a real player it is the client: it calls, and each answer says what to do next. Messages are written and read by
hand (`wire.py`). Tasks: `ball` (balance a ball on a plate, 2 continuous actions), `gather` (walk to a target and take
it: continuous and discrete actions, masks, rays, a camera, two behaviours, agents that decide at different times).
"""

import argparse
import io
import math
import os
import random
import struct
import sys
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent))
import wire

PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400").bytes_le


class Ball:
    """A ball on a plate that two motors tilt; an episode ends when it falls off, and is cut after 200 decisions.

    Five physics steps of 20 ms per decision. Reward 0.1 for each decision, -1 for the fall; the best return is 20.
    """

    decision_period = 5
    key = "Ball?team=0"
    limit, tilt, rate, edge = 200, math.radians(25), math.radians(2), 2.5

    def __init__(self, id: int, generator: random.Random, parameters: dict[str, float]) -> None:
        self.id, self.random, self.parameters = id, generator, parameters
        self.begin()

    def begin(self) -> None:
        draw = self.random.uniform
        self.angle = [draw(-0.17, 0.17), draw(-0.17, 0.17)]
        self.position = [draw(-1.5, 1.5), draw(-1.5, 1.5)]
        self.speed = [0.0, 0.0]
        self.decisions, self.reward, self.fallen = 0, 0.0, False

    @property
    def brain(self) -> bytes:
        return wire.brain(self.key, continuous=2)

    def observe(self) -> list[bytes]:
        return [wire.vector([*self.angle, *self.position, *self.speed], "VectorSensor_size6")]

    def act(self, continuous: list[float], discrete: list[int]) -> None:
        pull = 5 / 7 * self.parameters.get("gravity", 9.81)
        for _ in range(self.decision_period):
            for axis in (0, 1):
                turn = max(-1.0, min(1.0, continuous[axis])) * self.rate
                self.angle[axis] = max(-self.tilt, min(self.tilt, self.angle[axis] + turn))
                self.speed[axis] += pull * math.sin(self.angle[axis]) * 0.02
                self.position[axis] += self.speed[axis] * 0.02
        self.decisions += 1
        self.fallen = max(map(abs, self.position)) > self.edge
        self.reward = -1.0 if self.fallen else 0.1

    @property
    def ended(self) -> bool:
        return self.fallen or self.decisions >= self.limit

    @property
    def cut(self) -> bool:
        return not self.fallen

    def mask(self) -> list[bool]:
        return []

    def asks(self, tick: int) -> bool:
        return True


class Gatherer:
    """Walks on a line to a target and takes it with one of two hands, whichever the target's colour asks for.

    One continuous action, the speed; one discrete branch (walk, take left, take right), in which taking is forbidden
    out of reach, and another that does nothing. Reward 1 for the right hand, -0.5 for the wrong one, and the episode
    ends; it is cut after 50 decisions. Agents decide every tick, every second or every third one.
    """

    key = "Gatherer?team=0"
    reach = 0.2

    def __init__(self, id: int, generator: random.Random, parameters: dict[str, float]) -> None:
        self.id, self.random, self.parameters = id, generator, parameters
        self.begin()

    def begin(self) -> None:
        self.period = 1 + self.id % int(self.parameters.get("periods", 3))
        self.limit = int(self.parameters.get("limit", 50))
        self.position, self.target = self.random.uniform(-1, 1), self.random.uniform(-1, 1)
        self.hand = self.random.randrange(2)
        self.decisions, self.reward, self.taken = 0, 0.0, False

    @property
    def brain(self) -> bytes:
        return wire.brain(self.key, continuous=1, branches=(3, 2))

    @property
    def near(self) -> bool:
        return abs(self.position - self.target) < self.reach

    def observe(self) -> list[bytes]:
        gap = self.target - self.position
        # As Unity's rays: for each one a flag per tag, whether it hit nothing, and how far it went.
        hits = [gap < -self.reach, self.near, gap > self.reach]
        seen = [number for hit in hits for number in ((1, 0, abs(gap) / 2) if hit else (0, 1, 1))]
        return [
            wire.vector([self.position, gap, float(self.near)], "VectorSensor_size3"),
            wire.vector(seen, "RayPerceptionSensor"),
            wire.picture(colour_png(self.hand), (3, 8, 8)),
        ]

    def act(self, continuous: list[float], discrete: list[int]) -> None:
        self.decisions += 1
        self.reward = -0.01
        if self.mask()[discrete[0]]:
            raise SystemExit(f"agent {self.id} took what its mask forbids")
        if discrete[0]:
            self.taken = True
            self.reward = 1.0 if discrete[0] - 1 == self.hand else -0.5
        self.position = max(-1.0, min(1.0, self.position + 0.2 * max(-1.0, min(1.0, continuous[0]))))

    @property
    def ended(self) -> bool:
        return self.taken or self.decisions >= self.limit

    @property
    def cut(self) -> bool:
        return not self.taken

    def mask(self) -> list[bool]:
        return [False, not self.near, not self.near, False, False]

    def asks(self, tick: int) -> bool:
        return tick % self.period == 0


class Watcher(Gatherer):
    """A second behaviour in the scene of the gatherers; nobody trains it, unless the parameter `trained` is 1."""

    key = "Watcher?team=1"

    @property
    def brain(self) -> bytes:
        return wire.brain(self.key, branches=(2,))

    def observe(self) -> list[bytes]:
        return [wire.vector([self.position], "VectorSensor_size1")]

    def act(self, continuous: list[float], discrete: list[int]) -> None:
        trained = self.parameters.get("trained")
        if continuous or (discrete not in ([0], [1]) if trained else discrete != [0]):
            raise SystemExit(f"an untrained agent got the actions {continuous} {discrete}")
        self.decisions += 1
        self.reward = float(discrete[0])

    def mask(self) -> list[bool]:
        return []


def colour_png(hand: int) -> bytes:
    """A picture of 8 by 8 pixels, red or blue."""
    from PIL import Image

    if hand not in _PICTURES:
        held = io.BytesIO()
        Image.new("RGB", (8, 8), (255, 0, 0) if hand else (0, 0, 255)).save(held, "png")
        _PICTURES[hand] = held.getvalue()
    return _PICTURES[hand]


_PICTURES: dict[int, bytes] = {}


class Player:
    """The scene: agents, ticks, and what the answers say."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.parameters: dict[str, float] = {}
        self.ticks = self.exchanges = 0
        self.told: set[str] = set()

    def start(self, seed: int) -> None:
        self.random = random.Random(seed)
        kinds = {"ball": [Ball], "gather": [Gatherer]}[self.args.task]
        if self.args.watchers:
            kinds = [*kinds, Watcher]
        counts = [self.args.agents, self.args.watchers]
        self.agents = [
            kind(number + 100 * at, self.random, self.parameters)
            for at, kind in enumerate(kinds)
            for number in range(counts[at])
        ]

    def reset(self) -> bytes:
        for agent in self.agents:
            agent.begin()
        self.ticks = 0
        self.waiting = list(self.agents)
        return self.report({agent: [] for agent in self.agents}, self.agents)

    def go_on(self, given: dict[str, list[tuple[list[float], list[int]]]]) -> bytes:
        """Give actions to the agents that asked, and tick until one asks or ends."""
        for key in {agent.key for agent in self.waiting}:
            asked = [agent for agent in self.waiting if agent.key == key]
            if len(asked) != len(given.get(key, [])):
                raise SystemExit(f"{len(given.get(key, []))} actions for {len(asked)} agents of {key}")
            for agent, action in zip(asked, given[key]):
                agent.act(*action)
        ends: dict[object, list[bytes]] = {}
        while True:
            self.ticks += 1
            for agent in self.agents:
                if agent.ended:
                    told = wire.agent(agent.id, agent.observe(), agent.reward, True, agent.cut)
                    ends[agent] = [told]
                    if self.args.new_ids:
                        agent.id += 1000
                    agent.begin()
            self.waiting = [agent for agent in self.agents if agent.asks(self.ticks)]
            if self.waiting or ends:
                return self.report(ends, self.waiting)

    def report(self, ends: dict, asking: list) -> bytes:  # type: ignore[type-arg]
        found: dict[str, list[bytes]] = {}
        for agent in self.agents:
            found.setdefault(agent.key, []).extend(ends.get(agent, []))
        for agent in asking:
            told = wire.agent(agent.id, agent.observe(), agent.reward, mask=agent.mask())
            agent.reward = 0.0
            found[agent.key].append(told)
        found = {key: several for key, several in found.items() if several}
        new = [agent for agent in self.agents if agent.key in found and agent.key not in self.told]
        brains = {agent.key: agent.brain for agent in new}
        self.told.update(brains)
        return wire.output(found, list(brains.values()))

    def read_parameters(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            channel, length = data[at : at + 16], struct.unpack_from("<i", data, at + 16)[0]
            payload, at = data[at + 20 : at + 20 + length], at + 20 + length
            if channel == PARAMETERS:
                size = struct.unpack_from("<i", payload)[0]
                kind, value = struct.unpack_from("<if", payload, 4 + size)
                if kind == 0:
                    self.parameters[payload[4 : 4 + size].decode()] = value

    def answer(self, data: bytes) -> bytes | None:
        """What to send after an answer; None: the connection ends."""
        if wire.status(data) != 200:
            return None
        self.exchanges += 1
        self.read_parameters(wire.side_channel(data))
        if self.args.dies and self.exchanges == self.args.dies and first_time(self.args.once):
            os._exit(7)
        if self.args.hangs and self.exchanges == self.args.hangs and first_time(self.args.once):
            import signal

            signal.pause()
        return self.reset() if wire.command(data) == 1 else self.go_on(wire.actions(data))


def first_time(marker: str) -> bool:
    """Whether no player has been here before; without a marker it is always the first time."""
    if not marker:
        return True
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    import grpc

    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", type=int, required=True)
    parser.add_argument("--task", default="ball", choices=("ball", "gather"))
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--watchers", type=int, default=0, help="agents of a second behaviour")
    parser.add_argument("--new-ids", action="store_true", help="another id for each episode, as in Unity")
    parser.add_argument("--version", default="1.5.0")
    parser.add_argument("--dies", type=int, default=0, help="end at this exchange")
    parser.add_argument("--hangs", type=int, default=0, help="stop answering at this exchange")
    parser.add_argument("--once", default="", help="file that remembers that one player has died or hung")
    parser.add_argument("--alone", default="", help="file that makes every player but the first end at once")
    parser.add_argument("--record", default="", help="file for all messages, a call and its answer per line")
    args, _ = parser.parse_known_args()
    if args.alone and not first_time(args.alone):
        raise SystemExit("another player was here before")
    player = Player(args)
    with grpc.insecure_channel(f"localhost:{args.mlagents_port}") as channel:
        call = channel.unary_unary(
            "/communicator_objects.UnityToExternalProto/Exchange",
            request_serializer=None,
            response_deserializer=None,
        )

        def exchange(request: bytes) -> bytes:
            answer: bytes = call(request, wait_for_ready=True)
            if args.record:
                with open(args.record, "a") as file:
                    file.write(f"{request.hex()} {answer.hex()}\n")
            return answer

        try:
            data = exchange(wire.hello(args.version))
            player.start(wire.seed(data))
            request: bytes | None = wire.message()
            while request is not None:
                request = player.answer(exchange(request))
        except grpc.RpcError:
            return  # the other side is gone


if __name__ == "__main__":
    main()
