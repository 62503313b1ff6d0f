"""How the threads of a CUDA block divide a tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Which thread of a CUDA block holds which elements of a tile.

    form: "rows" (states in registers), "elements" (no stream), "scan" (Scan and Summarise), "tile" (tiles and states in shared
    memory), "mma" (fragments of 16 x 8 accumulators of matrix instructions) or "wgmma" (the same fragments, products by
    warpgroups). warps: of the block, the last `producers` of which only copy.
    rows: group: threads that share a row; the block does threads / group points of the last grid axis at once. elems: elements
    of the stream a thread holds of a tile, `vector` of them consecutive. along: which neighbour threads walk, "stream" or "row".
    resident: blocks of a multiprocessor that go over all items in turn (0: a block does no other items after its first ones).
    mma: fragments: blocks of 16 rows that a warp holds. stages: tiles of operands in flight. parts: groups of warps, each with its
    own share of every tile of the stream and states of its own, combined by a `Finish` of parts. run: neighbours a thread holds.
    wgmma: across: warpgroups that have all the rows and a share of the columns of states. Each makes the elements of its share of a
    tile of the stream; all get the folds of the whole tile, and the elements that products with columns read."""

    form: str
    warps: int
    fragments: int = 1
    stages: int = 2
    producers: int = 0
    group: int = 1
    elems: int = 1
    vector: int = 1
    along: str = "stream"
    parts: int = 1
    run: int = 2
    resident: int = 0
    across: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps
