"""The model of actors, queues and learner agrees with what can be worked out by hand."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from scaling import CARTPOLE, HEADER, core_seconds, row, stretches
from scaling_costs import calibrate, fit
from scaling_model import Cluster, Costs, bounds, simulate

# A trajectory is 10 rows of 2 environments: 5 ms + 10 * (2 ms + 2 * 0.5 ms + 2 * 1 ms) = 55 ms to roll, 11 * 2 * 100 =
# 2,200 bytes.
COSTS = Costs(
    env=0.001,
    act=0.002,
    act_env=0.0005,
    rollout=0.005,
    row_bytes=100,
    weight_bytes=1000,
    gradient_bytes=1000,
    update=0.02,
    update_row=1e-5,
    publish_byte=1e-5,
    take=0.001,
    take_byte=0.0,
)
NODES = Cluster(num_envs=2, steps=10, cores=4, actors_per_node=4)
ONE_MACHINE = Cluster(num_envs=2, steps=10, cores=2)


def test_one_actor_is_as_fast_as_it_rolls() -> None:
    found = simulate(COSTS, NODES, 1)
    assert found.steps_per_second == pytest.approx(20 / 0.055)  # nothing of the learner's 31.2 ms shows
    assert found.bottleneck == "actors' cores"
    assert found.waiting == pytest.approx(0)


def test_actors_below_every_limit_add_up() -> None:
    assert simulate(COSTS, NODES, 12).steps_per_second == pytest.approx(12 * 20 / 0.055)


def test_more_actors_than_cores_share_them_evenly() -> None:
    crowded = replace(NODES, actors_per_node=8)
    assert simulate(COSTS, crowded, 8).steps_per_second == pytest.approx(4 * 20 / 0.055)


def test_many_actors_wait_for_the_learner() -> None:
    # 1,000 trajectories: 10 ms to publish, 1 s to take them, 20 ms + 20,000 * 10 us to learn: 1.23 s for 20,000 rows.
    found = simulate(COSTS, NODES, 1000)
    assert found.steps_per_second == pytest.approx(20_000 / 1.23, rel=1e-3)
    assert found.bottleneck == "learner: taking trajectories"
    assert found.busy["learner"] == pytest.approx(1, rel=1e-3)
    # They roll for 55 ms of every 1.23 s.
    assert found.waiting == pytest.approx(1 - 0.055 / 1.23, rel=1e-2)


@pytest.mark.parametrize(
    ("dear", "name"),
    [
        ({"update_row": 1e-3}, "learner: updates"),
        ({"publish_byte": 1e-2}, "learner: publishing"),
    ],
)
def test_what_the_learner_spends_most_of_its_time_on_is_named(dear: dict[str, float], name: str) -> None:
    assert simulate(replace(COSTS, **dear), NODES, 64).bottleneck == name


def test_a_link_of_twice_the_speed_brings_twice_as_much_where_it_is_the_limit() -> None:
    # 22,000 bytes a second are 10 trajectories, 200 rows.
    slow = replace(NODES, network=22_000.0)
    costs = replace(COSTS, weight_bytes=1)
    once, twice = (simulate(costs, replace(slow, network=slow.network * by), 64) for by in (1, 2))
    assert once.bottleneck == twice.bottleneck == "link in"
    assert once.steps_per_second == pytest.approx(200, rel=1e-3)
    assert twice.steps_per_second == pytest.approx(400, rel=1e-3)


def test_on_one_machine_the_learner_takes_its_share_of_the_cores() -> None:
    # An epoch of 4 actors: 4 * 55 ms to roll; 10 + 4 + 20.8 ms to learn; two cores.
    found = simulate(COSTS, ONE_MACHINE, 4)
    assert found.steps_per_second == pytest.approx(80 / ((0.22 + 0.0348) / 2), rel=1e-3)
    assert found.cores == pytest.approx(2)
    assert found.bottleneck == "actors' cores"


def test_one_actor_and_the_learner_have_a_core_each() -> None:
    assert simulate(COSTS, ONE_MACHINE, 1).steps_per_second == pytest.approx(20 / 0.055)


def test_an_actor_is_one_version_behind_where_the_learner_waits_for_it() -> None:
    assert simulate(COSTS, NODES, 1).lag == 1  # it goes on before its last trajectory was learned from


def test_an_actor_is_two_versions_behind_where_it_waits_for_the_learner() -> None:
    assert simulate(replace(COSTS, update=1.0), NODES, 1).lag == 2  # both buffers hold trajectories that wait


def test_nodes_that_weights_do_not_reach_in_time_skip_versions_and_nobody_waits() -> None:
    # 16 nodes, 10 ms for the weights of each: 160 ms, where an epoch takes 10 + 64 + 20 + 12.8 ms.
    costs = replace(COSTS, weight_bytes=1000, row_bytes=0)
    near, far = (simulate(costs, replace(NODES, network=speed), 64) for speed in (1e9, 1e5))
    assert far.steps_per_second == pytest.approx(near.steps_per_second, rel=1e-3)
    assert far.busy["weights out"] == pytest.approx(1, rel=1e-3)
    assert far.lag > near.lag


def test_random_steps_cost_nothing_where_nobody_waits_for_the_slowest() -> None:
    found = simulate(COSTS, replace(NODES, env_times="exponential"), 8)
    assert found.steps_per_second == pytest.approx(8 * 20 / 0.055, rel=0.01)


def test_from_replay_the_learner_allows_what_the_ratio_of_updates_leaves() -> None:
    costs = replace(COSTS, take=0, publish_byte=0, update=0.003)
    # An update of 100 rows takes 3 ms + 100 * 10 us, and there is one for 4 steps.
    found = simulate(costs, replace(NODES, ratio=0.25, batch_size=100), 64)
    assert found.steps_per_second == pytest.approx(4 / 0.004, rel=1e-3)


def test_eight_learners_carry_eight_times_as_much_less_what_averaging_costs() -> None:
    # 125 actors each: 10 + 125 + 20 + 25 ms; a gradient of 1,000 bytes goes round in 2 * 7/8 * 1 ms.
    fast = replace(NODES, network=1e6, learners=8)
    found = simulate(replace(COSTS, row_bytes=0, weight_bytes=1000), fast, 1000)
    assert found.steps_per_second == pytest.approx(20_000 / (0.18 + 0.00175), rel=1e-3)


def test_actors_that_learners_can_not_share_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="13 actors can't be shared evenly by 8 learners; use 8 or 16"):
        simulate(COSTS, replace(NODES, learners=8), 13)


@pytest.mark.parametrize("cluster", [NODES, ONE_MACHINE, replace(NODES, network=2e6, latency=1e-3)])
@pytest.mark.parametrize("actors", [1, 3, 10, 100])
def test_no_resource_gives_more_than_it_has(cluster: Cluster, actors: int) -> None:
    limit = min(bounds(COSTS, cluster, actors).values())
    rate = simulate(COSTS, cluster, actors).steps_per_second
    assert 0.8 * limit < rate < limit * (1 + 1e-6)


def test_ten_thousand_actors_have_a_bottleneck() -> None:
    cluster = replace(NODES, network=1e6)
    found = simulate(COSTS, cluster, 10_000, epochs=2, warm_up=2)
    # The link takes 454.5 trajectories a second, the learner 813.
    assert found.bottleneck == "link in"
    shown = dict(zip(HEADER, row(10_000, cluster, found)))
    assert shown["env steps/s"] == "9,090"
    assert shown["rows an update"] == "200,000"


def test_costs_are_found_from_times_that_follow_them() -> None:
    assert fit([(1, 1), (1, 2), (1, 4)], [5.0, 7.0, 11.0]) == pytest.approx([3, 2])
    assert fit([(1, 1), (1, 2), (1, 4)], [1.0, 3.0, 7.0])[0] == 0  # no cost is below zero


def test_calibration_measures_every_cost_of_cartpole() -> None:
    found = calibrate(CARTPOLE, "cpu", 0.0)
    # An actor of (4 + 1) * 64 + 65 * 64 + 65 * 2 weights, a critic of (4 + 1) * 64 + 65 * 64 + 65.
    assert found.gradient_bytes == 4 * (4610 + 4545)
    assert 4 * 4610 <= found.weight_bytes < found.gradient_bytes  # actors need no critic
    assert found.env >= 0  # CartPole steps all environments at once
    assert found.act > 0
    assert found.update > 0
    assert found.publish_byte > 0
    assert found.take > 0


def test_seconds_of_started_processes_count() -> None:
    before = core_seconds()
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout
        process.stdout.readline()
        assert core_seconds() - before >= 0.25  # counted in hundredths
        process.kill()


def test_equal_neighbours_make_a_stretch() -> None:
    assert stretches(["a", "a", "b", "a"]) == [(0, 1), (2, 2), (3, 3)]
