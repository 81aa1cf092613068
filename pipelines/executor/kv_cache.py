"""Blocks of the paged KV cache: who uses them, what they hold, what may be reused.

Blocks that no request uses keep their contents until they are needed, least recently used first, in a
tree: a node is one block, its path from the root the tokens before it. A request starts from the
longest path that equals its own tokens.

The last bits of a key depend on whether its position was computed as prompt (in a chunk) or as output
(as a row), so a node also records how many of its positions are prompt, and a block is reused only
where the request would have computed it the same way. A warm cache therefore never changes an output.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

SCRATCH_BLOCK = 0
"""Written by the dummy row that fills up a one-token step; never given to a request."""


@dataclass(eq=False)
class CachedBlock:
    """A node of the tree: a block whose contents are known.

    Attributes:
        token_ids: int32, the tokens whose keys and values the block holds; fewer than the block size only
            in a leaf.
        num_prompt: How many of them, from the first, were computed as prompt.
    """

    block: int
    token_ids: TokenIds
    num_prompt: int
    parent: CachedBlock | None
    children: dict[tuple[bytes, int], CachedBlock] = field(default_factory=dict)
    openings: dict[int, list[CachedBlock]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[bytes, int]:
        """What identifies the node among its siblings."""
        return (self.token_ids.tobytes(), self.num_prompt)


@dataclass
class BlockTable:
    """The blocks of one request.

    Attributes:
        blocks: Block of each run of ``block_size`` positions.
        num_committed: Leading blocks that are in the tree.
        last_node: Node of the last committed block; the root if there is none.
    """

    blocks: list[int]
    num_committed: int
    last_node: CachedBlock


class KvCache:
    """Allocates, shares, caches and evicts blocks. Holds no keys or values itself.

    Args:
        num_blocks: Blocks of the cache, the scratch block included.
        block_size: Positions in a block.
        copy_block: Copies keys and values of one block (first argument) to another (second).
    """

    def __init__(self, num_blocks: int, block_size: int, copy_block: Callable[[int, int], None]) -> None:
        self.block_size = block_size
        self._copy_block = copy_block
        self._num_users = [0] * num_blocks
        self._node_of: list[CachedBlock | None] = [None] * num_blocks
        self._free = deque(range(SCRATCH_BLOCK + 1, num_blocks))
        self._unused: OrderedDict[int, None] = OrderedDict()  # cached blocks without users, oldest first
        self._root = CachedBlock(SCRATCH_BLOCK, NO_TOKENS, 0, None)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request uses, whether or not they still hold something reusable."""
        return len(self._free) + len(self._unused)

    def start(self, token_ids: TokenIds, num_prompt: int) -> tuple[BlockTable, int]:
        """Find what is already cached of a request's tokens.

        At least the last token is left to compute, for its logits, and never exactly one token of the
        prompt, since a prompt is computed in chunks of at least two.

        Args:
            token_ids: int32 [n], n >= 1, all known tokens.
            num_prompt: Leading tokens that the request computes as prompt.

        Returns:
            The request's table and the number of leading positions that it need not compute.
        """
        size = self.block_size
        limit = len(token_ids) - 1
        if num_prompt > limit:
            limit = max(num_prompt - 2, 0)
        node = self._root
        blocks: list[int] = []
        while (len(blocks) + 1) * size <= limit:
            begin = len(blocks) * size
            prompt_here = min(max(num_prompt - begin, 0), size)
            child = node.children.get((token_ids[begin : begin + size].tobytes(), prompt_here))
            if child is None:
                break
            self._use(child.block)
            blocks.append(child.block)
            node = child
        num_cached = len(blocks) * size
        table = BlockTable(blocks, len(blocks), node)
        num_cached += self._reuse_part(table, token_ids[num_cached:limit], num_prompt - num_cached)
        if num_prompt - num_cached == 1:
            self._drop_user(blocks.pop())
            num_cached -= size
            assert node.parent is not None
            table.num_committed, table.last_node = len(blocks), node.parent
        return table, num_cached

    def _reuse_part(self, table: BlockTable, wanted: TokenIds, num_prompt: int) -> int:
        """Go on in a leaf or in a copy of a block that begins like ``wanted``; returns positions gained."""
        if not len(wanted):
            return 0
        best, best_length, best_is_leaf = None, 0, False
        for node in table.last_node.openings.get(int(wanted[0]), ()):
            length = count_accepted(node.token_ids, wanted)
            prompt_here = min(max(num_prompt, 0), self.block_size)
            if node.num_prompt != prompt_here:
                length = min(length, node.num_prompt, prompt_here)
            if num_prompt - length == 1:
                length -= 1
            # Of equals the one that ends there, which needs no copy.
            is_leaf = length == len(node.token_ids) < self.block_size
            if length > best_length or (is_leaf and length == best_length and not best_is_leaf):
                best, best_length, best_is_leaf = node, length, is_leaf
        if best is None:
            return 0
        self._use(best.block)
        if best_is_leaf:
            # The usual case, a request going on after a round: nobody else can want this leaf shorter.
            self._forget(best)
            table.blocks.append(best.block)
            return best_length
        copy = self._allocate()
        if copy is not None:
            self._copy_block(best.block, copy)
            table.blocks.append(copy)
        self._drop_user(best.block)
        return 0 if copy is None else best_length

    def grow(self, table: BlockTable, num_positions: int) -> bool:
        """Give a request the blocks for its first ``num_positions`` positions.

        Returns:
            False, with nothing taken, if there are not enough blocks.
        """
        num_missing = -(-num_positions // self.block_size) - len(table.blocks)
        if num_missing > self.num_free_blocks:
            return False
        for _ in range(num_missing):
            block = self._allocate()
            assert block is not None
            table.blocks.append(block)
        return True

    def commit(self, table: BlockTable, token_ids: TokenIds, num_computed: int, num_prompt: int) -> None:
        """Make a request's full blocks known, so that others can share them while it still runs.

        Args:
            table: The request's table.
            token_ids: int32, its known tokens.
            num_computed: Leading positions whose keys and values are in the cache and will not change.
            num_prompt: Leading positions that were computed as prompt.
        """
        size = self.block_size
        while (table.num_committed + 1) * size <= num_computed:
            self._commit_next(table, token_ids, size, num_prompt)

    def _commit_next(self, table: BlockTable, token_ids: TokenIds, num_tokens: int, num_prompt: int) -> None:
        begin = table.num_committed * self.block_size
        node = CachedBlock(
            block=table.blocks[table.num_committed],
            token_ids=token_ids[begin : begin + num_tokens].copy(),
            num_prompt=min(max(num_prompt - begin, 0), num_tokens),
            parent=table.last_node,
        )
        twin = table.last_node.children.get(node.key)
        if twin is None:
            self._remember(node)
            twin = node
        else:  # another request computed the same: by the row rule its bits are the same too
            self._use(twin.block)
            self._drop_user(node.block)
            table.blocks[table.num_committed] = twin.block
        table.num_committed += 1
        table.last_node = twin

    def release(self, table: BlockTable, token_ids: TokenIds, num_computed: int, num_prompt: int) -> None:
        """Take a request's blocks back and keep their contents for reuse; arguments as in ``commit``."""
        self.commit(table, token_ids, num_computed, num_prompt)
        num_rest = num_computed - table.num_committed * self.block_size
        if num_rest > 0:
            self._commit_next(table, token_ids, num_rest, num_prompt)
        self._give_back(table)

    def discard(self, table: BlockTable) -> None:
        """Take a request's blocks back without trusting what it computed last."""
        self._give_back(table)

    def _give_back(self, table: BlockTable) -> None:
        # Last block first: a node is then always evicted before the nodes on the path to it.
        for block in reversed(table.blocks):
            self._drop_user(block)
        table.blocks.clear()
        table.num_committed = 0
        table.last_node = self._root

    def _use(self, block: int) -> None:
        self._num_users[block] += 1
        self._unused.pop(block, None)

    def _drop_user(self, block: int) -> None:
        self._num_users[block] -= 1
        if self._num_users[block]:
            return
        if self._node_of[block] is None:
            self._free.append(block)
        else:
            self._unused[block] = None

    def _allocate(self) -> int | None:
        if not self._free:
            if not self._unused:
                return None
            oldest = next(iter(self._unused))
            del self._unused[oldest]
            node = self._node_of[oldest]
            assert node is not None and not node.children
            self._forget(node)
            self._free.append(oldest)
        block = self._free.popleft()
        self._num_users[block] = 1
        return block

    def _remember(self, node: CachedBlock) -> None:
        assert node.parent is not None
        node.parent.children[node.key] = node
        node.parent.openings.setdefault(int(node.token_ids[0]), []).append(node)
        self._node_of[node.block] = node

    def _forget(self, node: CachedBlock) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
        siblings = node.parent.openings[int(node.token_ids[0])]
        siblings.remove(node)
        if not siblings:
            del node.parent.openings[int(node.token_ids[0])]
        self._node_of[node.block] = None

    def check(self) -> None:
        """Assert the invariants, for tests: every block is in exactly one state and the tree is whole."""
        free, unused = set(self._free), set(self._unused)
        used = {block for block, users in enumerate(self._num_users) if users}
        assert len(free) == len(self._free)
        assert not free & unused and not used & (free | unused)
        assert free | unused | used | {SCRATCH_BLOCK} == set(range(len(self._num_users)))
        assert SCRATCH_BLOCK not in free | unused | used
        reachable: dict[int, CachedBlock] = {}
        pending = [self._root]
        while pending:
            for child in pending.pop().children.values():
                assert child.block not in reachable and self._node_of[child.block] is child
                reachable[child.block] = child
                pending.append(child)
        assert reachable.keys() == {block for block, node in enumerate(self._node_of) if node is not None}
        assert unused <= reachable.keys() and not free & reachable.keys()
