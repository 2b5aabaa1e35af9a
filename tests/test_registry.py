"""Names for parts, and what a saved config may name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, only_trusted, register, registered, resolve
from whorl.nets.losses import value_loss

pytestmark = pytest.mark.usefixtures("own_registry")


class Residual(nn.Module):
    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        value = self.first(value)
        return value + self.second(value.tanh())


@pytest.fixture
def mypkg(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of the user's own."""
    package, nets = ModuleType("mypkg"), ModuleType("mypkg.nets")
    nets.Residual = Residual
    package.nets = nets
    monkeypatch.setitem(sys.modules, "mypkg", package)
    monkeypatch.setitem(sys.modules, "mypkg.nets", nets)
    return nets


def test_register_works_as_a_call_and_as_a_decorator() -> None:
    register("network", "one", Residual)

    @register("network", "two")
    class Two(Residual):
        pass

    assert resolve("network", "one") is Residual
    assert resolve("network", "two") is Two
    assert {"one", "two"} <= registered("network").keys()


def test_an_unknown_kind_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'network'"):
        register("netwrk", "x", Residual)


def test_an_unknown_name_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="no optimizer is called 'Adm'; did you mean 'Adam'"):
        resolve("optimizer", "Adm")


@pytest.mark.parametrize("name", ["AdamW", "adamw", "torch.optim.AdamW"])
def test_torch_optimizers_are_found_in_any_spelling(name: str) -> None:
    assert resolve("optimizer", name) is torch.optim.AdamW


def test_an_import_path_that_leads_nowhere_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"network 'no\.such\.Net' can't be imported"):
        resolve("network", "no.such.Net")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("AdamW", Part("AdamW")),
        ({"class": "AdamW", "weight_decay": 0.1}, Part("AdamW", {"weight_decay": 0.1})),
        ({"class": "AdamW", "params": {"weight_decay": 0.1}}, Part("AdamW", {"weight_decay": 0.1})),
        (["Linear", "ELU"], Part("layers", {"layers": ["Linear", "ELU"]})),
        ({"layers": ["Linear"]}, Part("layers", {"layers": ["Linear"]})),
    ],
)
def test_a_part_is_read_from_every_form(value: object, part: Part) -> None:
    assert Part.of(value) == part
    assert Part.of(part.plain()) == part


def test_options_that_do_not_fit_are_told_with_their_name() -> None:
    with pytest.raises(ConfigError, match=r"'AdamW' can't be built with weight_dacay=0\.1.*weight_dacay"):
        construct("optimizer", Part("AdamW", {"weight_dacay": 0.1}), [nn.Parameter(torch.zeros(1))])


def test_values_that_do_not_fit_are_told_too() -> None:
    with pytest.raises(ConfigError, match="Invalid weight_decay"):
        construct("optimizer", Part("AdamW", {"weight_decay": -1.0}), [nn.Parameter(torch.zeros(1))])


def test_types_that_do_not_fit_are_told_with_what_is_taken() -> None:
    with pytest.raises(
        ConfigError, match=r"can't be built with betas=0\.5: .*; it takes betas: .* = \(0\.9, 0\.999\)"
    ):
        construct("optimizer", Part("Adam", {"betas": 0.5}), [nn.Parameter(torch.zeros(1))])


def test_a_user_may_name_any_import_path(mypkg: ModuleType) -> None:
    assert resolve("network", "mypkg.nets.Residual") is Residual


def test_a_saved_config_may_not_until_it_is_trusted(mypkg: ModuleType) -> None:
    with only_trusted(()), pytest.raises(ConfigError, match=r"--trust mypkg\.nets\.Residual"):
        resolve("network", "mypkg.nets.Residual")
    for trust in ("mypkg.nets.Residual", "mypkg.nets", "mypkg"):
        with only_trusted((trust,)):
            assert resolve("network", "mypkg.nets.Residual") is Residual
    with only_trusted(("mypk",)), pytest.raises(ConfigError):
        resolve("network", "mypkg.nets.Residual")


def test_a_saved_config_may_name_what_is_registered_or_ours() -> None:
    register("network", "residual", Residual)
    with only_trusted(()):
        assert resolve("network", "residual") is Residual
        assert resolve("layer", "torch.nn.Linear") is nn.Linear
        assert resolve("optimizer", "AdamW") is torch.optim.AdamW
        assert isinstance(resolve("algorithm", "whorl.algorithms.ppo.PPO"), type)
        assert resolve("encoder", "whorl.nets.flat.Flat").__name__ == "Flat"
        assert resolve("network", "whorl.nets.layers.layered").__name__ == "layered"
        assert resolve("loss", "whorl.nets.losses.huber").__name__ == "huber"


ESCAPES = [
    "os.system",
    "builtins.eval",
    "builtins.exec",
    "subprocess.Popen",
    "torch.hub.load",
    "torch.load",
    "torch.nn.modules.linear.torch.hub.load",
    "whorl.api.torch.hub.load",
    "whorl.api.torch",
    "whorl.core.registry.importlib.import_module",
    "whorl.core.registry.importlib",
    "whorl.core.registry.cache",
    "whorl.settings.presets.yaml.unsafe_load",
    "whorl.settings.presets.yaml",
    "whorl.settings.merge.dataclasses",
    "whorl.settings.merge.dataclass",
    "whorl.settings.merge.Path",
    "whorl.log.writers.open",
    "whorl.log.writers.os",
    "whorl.state.files.write_atomic",
    "whorl.state.files.shutil",
    "whorl.state.files.subprocess",
    "whorl.state.checkpoint.save",
    "whorl.distributed.pool.WorkerPool",
    "whorl.cli.main",
    "whorl.__main__.main",
    "whorl.api.load_run",
    "whorl.core.registry.register",
    "whorl.core.spec.torch",
    "whorl.agents.agent.ThreadPoolExecutor",
    "whorl..os.system",
    "whorl.",
    ".os.system",
]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", ["network", "encoder", "layer", "optimizer", "loss", "algorithm"])
def test_a_saved_config_reaches_nothing_but_parts(kind: str, name: str) -> None:
    with only_trusted(()), pytest.raises(ConfigError):
        resolve(kind, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("optimizer", "whorl.nets.flat.Flat"),
        ("algorithm", "whorl.nets.flat.Flat"),
        ("loss", "whorl.nets.layers.layered"),
        ("network", "whorl.nets.losses.huber"),
    ],
)
def test_a_saved_config_must_name_a_part_of_the_right_kind(kind: str, name: str) -> None:
    with only_trusted(()), pytest.raises(ConfigError, match="which whorl does not have"):
        resolve(kind, name)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("squared", {}, 2.0),  # (3 - 1)^2 / 2
        ("huber", {}, 1.5),  # 1 * (2 - 1/2)
        ("huber", {"delta": 0.5}, 0.875),  # 0.5 * (2 - 0.25)
        ("torch.nn.functional.l1_loss", {"reduction": "none"}, 2.0),
        ("torch.nn.HuberLoss", {"reduction": "none"}, 1.5),
    ],
)
def test_named_losses(name: str, options: dict[str, object], expected: float) -> None:
    loss: Callable[[Tensor, Tensor], Tensor] = value_loss(Part(name, options))
    assert loss(torch.tensor([3.0]), torch.tensor([1.0])).tolist() == [expected]


def test_a_loss_that_averages_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="reduction: none"):
        value_loss(Part("torch.nn.functional.l1_loss"))


def test_a_script_that_names_its_own_parts_trains_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import whorl

def size(q, target):
    return (q - target).abs()

print("trains")
whorl.load("CartPole-v1", "dqn", loss="mine.size", total_timesteps=100, quiet=True, eval=False).train()
""")
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout.count("trains")) == (0, 1), done.stderr
