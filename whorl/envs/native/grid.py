"""Worlds on a grid that count the cells an agent visits, and mazes for them.

A maze of `size` by `size` cells, an odd number, has nodes at odd rows and columns. Each node is open, and so is the
cell between two nodes that are joined. The joined pairs are a spanning tree with the smallest sum of random weights, so
there is exactly one path between any two cells. `joined` finds the trees of all environments at once (Borůvka 1926).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.envs.native.world import State, World

UP, RIGHT, DOWN, LEFT = range(4)
"""actions that move to a neighbouring cell"""
MEASURES = ("cells_visited", "coverage")
"""cells visited in an episode, and their share of all open cells"""


class Maze(World):
    """State: `place` [B], `walls` [cells, B] and `visited` [cells, B], cells counted row by row.

    Args:
        size: rows and columns, walls included.
        strip: rows of the observed image below the maze.
        actions: number of actions, of which the first four move.
        measures: names of episode statistics after those of `MEASURES`.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        size: int,
        max_steps: int,
        strip: int = 0,
        actions: int = 4,
        measures: tuple[str, ...] = (),
    ) -> None:
        super().__init__(num_envs, device)
        if size < 5 or size % 2 == 0:
            raise ConfigError(f"size is {size}; it must be odd and at least 5, because walls are cells too")
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1")
        self.size, self.max_steps = size, max_steps
        self.nodes = (size // 2) ** 2
        self.open_cells = 2 * self.nodes - 1
        """cells that are no walls: the nodes of a tree and its edges"""
        image = Array((size + strip, size, 3), "uint8", 0, 255)
        told = (*MEASURES, *measures)
        self.spec = Spec(image, Discrete(actions), num_envs, told, map_shape=(size, size))
        self._cells = torch.arange(size * size, device=self.device)[:, None]  # [cells, 1]
        self._moves = torch.tensor([-size, 1, size, -1] + [0] * (actions - 4), device=self.device)
        first, second, cell = edges(size)
        self._first, self._second, self._edge_cell = (
            torch.tensor(x, device=self.device) for x in (first, second, cell)
        )
        solid = torch.ones(size, size, dtype=torch.bool)
        solid[1::2, 1::2] = False
        self._solid = solid.view(-1, 1).to(self.device)
        """[cells, 1] walls where no nodes are joined"""
        self.every_maze = self.device.type != "cpu"
        """whether `mazes` builds all of them: a GPU would have to be waited for to learn which are needed"""

    @property
    def start(self) -> int:
        """The cell in which episodes start: the upper left node."""
        return self.size + 1

    def mazes(self, generator: torch.Generator) -> Tensor:
        """Walls [cells, B] of new mazes; without `every_maze` only where an episode has ended, because most of a step's
        time would go into mazes that are not read. All are drawn, so the generator does not depend on it."""
        weight = self.weights(generator, self.num_envs)
        if self.every_maze:
            return self.walls(weight)
        ended, walls = self.ended.nonzero()[:, 0], self._solid.repeat(1, self.num_envs)
        return walls.index_copy_(1, ended, self.walls(weight[:, ended])) if len(ended) else walls

    def weights(self, generator: torch.Generator, num_envs: int) -> Tensor:
        """Random weights [E, num_envs] of all edges, drawn on the generator's device."""
        shape = (len(self._first), num_envs)
        return torch.randint(2**40, shape, generator=generator, device=generator.device).to(self.device)

    def walls(self, weight: Tensor) -> Tensor:
        """Walls [cells, N] of the mazes whose edges have these weights [E, N]."""
        between = ~joined(weight, self._first, self._second, self.nodes)
        return self._solid.repeat(1, weight.shape[1]).index_copy_(0, self._edge_cell, between)

    def moved(self, state: State, action: Tensor) -> tuple[Tensor, Tensor]:
        """The places [B] after a move, and whether [B] a wall was in the way."""
        there = state["place"] + self._moves[action]
        blocked = state["walls"].gather(0, there[None])[0]
        return torch.where(blocked, state["place"], there), blocked

    def cells(self) -> Tensor:
        return self.state["place"].clone()

    def remember(self, state: State, before: State | None) -> State:
        here = self._cells == state["place"]
        return {**state, "visited": here if before is None else here | before["visited"]}

    def measure(self, state: State) -> Sequence[Tensor]:
        visited = state["visited"].sum(0)
        return [visited, visited / self.open_cells]

    def image(self, colours: Tensor, code: Tensor) -> Tensor:
        """Images [B, rows, columns, 3] of cells whose colours [n, 3] are given by their codes [cells, B]."""
        return colours[code.T].unflatten(1, (-1, self.size))

    def clock(self, env_index: int) -> dict[str, str]:
        """The lines of text in a rendered frame."""
        visited = int(self.state["visited"][:, env_index].sum())
        return {
            "step": f"{int(self.steps[env_index])} of {self.max_steps}",
            "return": f"{float(self.returns[env_index]):.1f}",
            "visited": f"{visited} of {self.open_cells}",
        }

    def trail(self, env_index: int) -> list[tuple[int, int]]:
        """Row and column of each cell visited."""
        found = self.state["visited"][:, env_index].nonzero()[:, 0].tolist()
        return [divmod(cell, self.size) for cell in found]


def edges(size: int) -> tuple[list[int], list[int], list[int]]:
    """The pairs of neighbouring nodes, and the cell between them."""
    half = size // 2
    found = []
    for row in range(half):
        for column in range(half):
            node, cell = half * row + column, size * (2 * row + 1) + 2 * column + 1
            if column + 1 < half:
                found.append((node, node + 1, cell + 1))
            if row + 1 < half:
                found.append((node, node + half, cell + size))
    first, second, cell_between = zip(*found)
    return list(first), list(second), list(cell_between)


def joined(weight: Tensor, first: Tensor, second: Tensor, nodes: int) -> Tensor:
    """The edges [E, B] of minimum spanning trees, by integer weights [E, B] and the ends [E] of the edges.

    In each round every tree takes its lightest edge to another tree, so the number of trees is at least halved.
    """
    count, num_envs = weight.shape
    number = torch.arange(count, device=weight.device)[:, None]
    weight = weight * count + number  # all different, so that no round closes a loop
    none = torch.iinfo(weight.dtype).max
    tree = torch.arange(nodes, device=weight.device)[:, None].repeat(1, num_envs)  # [nodes, B]
    own = tree.clone()
    taken = torch.zeros_like(weight, dtype=torch.bool)
    trees = nodes
    while trees > 1:
        a, b = tree[first], tree[second]  # [E, B]
        offered = torch.where(a == b, none, weight)
        lightest = torch.full_like(own, none)  # [nodes, B] by tree
        lightest.scatter_reduce_(0, a, offered, "amin").scatter_reduce_(0, b, offered, "amin")
        alone = lightest == none
        edge = torch.where(alone, 0, lightest % count)
        # The other end of a tree's edge: one of its two ends is the tree itself.
        other = torch.where(alone, own, a.gather(0, edge) + b.gather(0, edge) - own)
        taken |= (offered != none) & ((offered == lightest.gather(0, a)) | (offered == lightest.gather(0, b)))
        # Two trees that took the same edge point at each other: the smaller number becomes the root.
        other = torch.where((other.gather(0, other) == own) & (own < other), own, other)
        for _ in range((trees - 1).bit_length()):
            other = other.gather(0, other)
        tree = other.gather(0, tree)
        trees //= 2
    return taken
