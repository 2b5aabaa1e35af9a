"""Platform: steps against the rules written tick by tick for one player, and what a scripted player gets."""

import pytest
import torch
from torch import Tensor

from whorl.envs.native.platform import HOP, LEAP, RUN, TICKS, Platform

LIMITS = torch.tensor([30.0, 720.0, 430.0])
PLATFORMS = ((0, 250), (475, 750), (985, 1035))
NOISELESS = torch.zeros(3 * TICKS, 1, dtype=torch.float64)


def act(choice: int, parameter: float) -> dict[str, Tensor]:
    return {"0": torch.tensor([choice]), "1": (2 * parameter / LIMITS - 1)[None].clamp(-1, 1)}


def quiet(pushes: Tensor | None = None, drift: Tensor = NOISELESS) -> Platform:
    """One player in float64, whose random numbers are given."""
    world = Platform(1, dtype="float64")
    world.reset(0)
    given = {2: torch.zeros(2, 1, dtype=torch.float64) if pushes is None else pushes, 3 * TICKS: drift}
    world.normal = lambda rows, generator: given[rows]
    return world


class Player:
    """The rules for one player, tick by tick, in plain numbers."""

    def __init__(self, body: list[float]) -> None:
        self.x, self.y, self.vx, *rest = body
        self.vy, self.enemies, self.walks = 0.0, rest[:2], rest[2:]

    def stands(self) -> bool:
        return self.y == 40 and any(left - 20 <= self.x <= right for left, right in PLATFORMS)

    def act(self, choice: int, parameter: float, pushes: list[float], drift: list[list[float]]) -> bool:
        """Until the action is done; whether that ends the episode."""
        for number in range(TICKS):
            lost, first, second = (0.025 * x for x in drift[number])
            grounded = self.stands()
            if grounded and choice == RUN:
                self.vx += parameter
            elif grounded:
                lift = 35 if choice == HOP else 25
                wanted = min(parameter / (2 * lift / 9.8 + 1) - self.vx, 200 - lift) - abs(pushes[0])
                self.vx += max(-30, min(30, wanted))
                self.vy += lift - abs(pushes[1])
            else:
                self.vy -= 9.8 * 0.05
            self.vx = max(0.0, min(70.0 if grounded else 100.0, self.vx - abs(lost)))
            self.walk(1 if self.x > 475 else 0, (first, second))
            self.x = min(max(self.x + 0.05 * self.vx, 0), 1035)
            self.y += 0.05 * self.vy
            self.vx *= 0.99
            for left, right in PLATFORMS:
                self.collide(left, right)
            touches = any(abs(self.x - enemy) < 20 for enemy in self.enemies) and self.y < 70
            if self.y < 40 or self.x >= 1035 or touches:
                return True
            if number == 19 if choice == RUN else self.stands():
                return False
        raise AssertionError("the action did not end")

    def walk(self, i: int, noise: tuple[float, float]) -> None:
        left, right = ((0, 230), (475, 730))[i]
        if not left < self.enemies[i] < right:
            self.walks[i] = -self.walks[i]
        self.walks[i] = max(-30, min(30, self.walks[i] + noise[i]))
        self.enemies[i] = max(left, min(right, self.enemies[i] + 0.05 * self.walks[i]))

    def collide(self, left: float, right: float) -> None:
        if not (left - 20 < self.x < right and -30 < self.y < 40):
            return
        beside = left - 20 if self.x < left else right if self.x > right - 20 else self.x
        if beside != self.x and abs(beside - self.x) < abs(40 - self.y):
            self.x = beside
        else:
            self.y, self.vy = 40.0, 0.0
        self.vx = 0.0


def test_a_run_without_noise_by_hand():
    # Full power reaches 70 in the third tick: 30, then 29.7 + 30, and from then on 70 at 0.05 s each.
    world = quiet()
    step = world.step(act(RUN, 30))
    x = 0.05 * (30 + 59.7 + 18 * 70)
    assert world.state["body"][:3, 0].tolist() == pytest.approx([x, 40, 69.3])
    assert float(step.reward) == pytest.approx(x / 1035)
    # The enemy turns at its edge, stays there, and walks 19 ticks at 30.
    assert world.state["body"][3, 0].item() == pytest.approx(230 - 19 * 1.5)
    assert not step.terminated.any() and not step.truncated.any()


def test_a_hop_is_limited_in_its_gain_of_speed_and_landing_stops_the_player():
    world = quiet()
    step = world.step(act(HOP, 720))
    # From rest the speed is 30 and decays by 1 % per tick; the 144th tick is the first below the platforms.
    assert float(world.state["body"][0]) == pytest.approx(0.05 * 30 * (1 - 0.99**144) / 0.01)
    assert world.state["body"][1:3, 0].tolist() == [40, 0]
    assert not step.terminated.any()


@pytest.mark.parametrize("seed", range(40))
def test_steps_are_those_of_the_rules_written_tick_by_tick(seed: int):
    generator = torch.Generator().manual_seed(seed)
    pushes = torch.randn(2, 1, generator=generator, dtype=torch.float64)
    drift = torch.randn(3 * TICKS, 1, generator=generator, dtype=torch.float64)
    world = quiet(pushes, drift)
    spots = torch.tensor([0.0, 90, 180, 225, 240, 249.9, 476, 560, 700, 740, 990, 1020])
    body = world.state["body"]
    body[0] = spots[seed % len(spots)]
    body[2] = 60 * torch.rand(1, generator=generator)
    body[3:5, 0] += -180 * torch.rand(2, generator=generator)
    choice = int(torch.randint(3, (1,), generator=generator))
    parameter = float(torch.rand(1, generator=generator) * LIMITS[choice])
    player = Player(body[:, 0].tolist())
    start = player.x
    ended = player.act(choice, parameter, pushes[:, 0].tolist(), drift.view(TICKS, 3).tolist())
    step = world.step(act(choice, parameter))
    found = [player.x, player.y, player.vx, *player.enemies, *player.walks]
    assert world.state["body"][:, 0].tolist() == pytest.approx(found, abs=1e-3)
    assert float(step.reward) == pytest.approx((player.x - start) / 1035, abs=1e-6)
    assert bool(step.terminated) == ended


@pytest.mark.parametrize("parameter", [0.0, 4.0])
def test_noise_slows_a_flight_to_rest_and_not_backwards(parameter: float):
    drift = torch.ones(3 * TICKS, 1, dtype=torch.float64)
    world = quiet(drift=drift)
    world.state["body"][0] = 100
    player = Player(world.state["body"][:, 0].tolist())
    player.act(HOP, parameter, [0, 0], drift.view(TICKS, 3).tolist())
    world.step(act(HOP, parameter))
    assert player.x < 101
    assert world.state["body"][:2, 0].tolist() == pytest.approx([player.x, player.y], abs=1e-4)


def test_a_player_that_runs_off_its_platform_falls():
    world = quiet()
    world.state["body"][:, 0] = torch.tensor([249.0, 40, 60, 100, 730, 30, 30])
    step = world.step(act(RUN, 30))
    assert step.terminated.all() and float(world.state["body"][1]) < 40
    assert float(step.measures) == 0


def test_the_end_of_the_way_is_a_success():
    world = quiet()
    world.state["body"][:, 0] = torch.tensor([1000.0, 40, 60, 100, 600, 30, 30])
    step = world.step(act(RUN, 30))
    assert float(step.reward) == pytest.approx(35 / 1035)
    assert step.terminated.all() and float(step.measures) == 1


def test_what_is_sensed_by_hand():
    world = Platform(3)
    world.reset(0)
    world.state["body"][:3] = torch.tensor([[0.0, 500, 1000], [40, 40, 40], [0, 50, 10]])
    world.state["body"][3:] = torch.tensor([230.0, 600, -30, 15])[:, None]
    expected = [
        [20 / 1055, 0, 230 / 1035, 0, 250 / 275, 1, 225 / 235, 0, 0],
        [520 / 1055, 0.5, 600 / 1035, 0.75, 1, 50 / 275, 1, 475 / 1035, 0],
        [1020 / 1055, 0.1, 600 / 1035, 0.75, 50 / 275, 0, 0, 985 / 1035, 0],
    ]
    torch.testing.assert_close(world.observe(world.state), torch.tensor(expected))


def scripted(world: Platform) -> dict[str, Tensor]:
    """Run up, hop over the enemy, come to the edge with enough speed, and hop over the gap."""
    x, _, speed, first, second, *_ = world.state["body"]
    on_first, last = x <= 475, x >= 965
    ahead = torch.where(on_first, first, second) > x
    edge = torch.where(on_first, 250.0, 750.0) - x
    over_enemy = ahead & ~last & ~(on_first & (x < 50))
    over_gap = ~ahead & ~last & (edge < 50) & (speed > 40)
    # A run from rest with power p advances by about 9.5 p.
    near, far = (edge - 4) / 9.5, (edge - 95) / 9.5
    approach = torch.where(speed > 5, 1.0, torch.where(edge < 60, near, far)).clamp(0, 30)
    power = torch.where(ahead | last, 30.0, approach)
    hop = torch.where(over_enemy & on_first, 277.0, 720.0)
    parameters = torch.stack([power, hop, torch.zeros_like(x)], 1)
    return {"0": torch.where(over_enemy | over_gap, HOP, RUN), "1": 2 * parameters / LIMITS - 1}


def test_a_scripted_player_gets_across():
    world = Platform(100)
    world.reset(0)
    successes = []
    for _ in range(16):
        step = world.step(scripted(world))
        successes += step.measures[step.terminated, 0].tolist()
    assert len(successes) >= 100 and sum(successes) / len(successes) > 0.95


def test_actions_of_several_kinds_are_stepped_together_as_alone():
    many, one = Platform(6, dtype="float64"), quiet()
    many.reset(0)
    many.normal = lambda rows, generator: torch.zeros(rows, 6, dtype=torch.float64)
    choices, parameters = [RUN, HOP, LEAP, RUN, HOP, LEAP], [30.0, 720, 430, 5, 100, 200]
    acted = [act(*pair) for pair in zip(choices, parameters)]
    together = many.step({key: torch.cat([action[key] for action in acted]) for key in "01"})
    for i, action in enumerate(acted):
        one.reset(0)
        alone = one.step(action)
        torch.testing.assert_close(together.obs[i : i + 1], alone.obs)
        assert together.terminated[i] == alone.terminated[0]
