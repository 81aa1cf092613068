"""Manages the blocks of the paged KV cache and reuses their contents.

Blocks that no request uses keep their contents until they are evicted, least recently used first. They form a
tree: a node is a block, and its path from the root holds the tokens before it. A request starts from the
longest path that matches its tokens. Each batch class of an executor has a tree of its own.

With OpenVINO's attention, the last bits of a key depend on whether its position was computed as prompt (in a
chunk) or as output (as a decode token). So a node also records how many of its positions are prompt, and a
block is reused only if the request would have computed it in the same way. A warm cache therefore never
changes an output. With attention of our own both forms have the same bits, and the tokens alone decide.

Requests with different salts share no block, so that nobody learns from the time of an answer what others
have asked: each salt has a root of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

SCRATCH_BLOCK = 0
"""Used by dummy rows; never allocated to a request."""

_NAME_BYTES = 32


class BlockPool:
    """The blocks of one engine.

    The requests of a cache may use as many blocks as its quota; the quotas add up to ``num_blocks``. So a
    cache whose requests are within its quota always gets a block. Cached blocks that no request uses count
    for no quota: when no block is free, the one that was unused for longest is taken, whichever cache has it.

    Attributes:
        num_blocks: Number of blocks for requests, without the scratch block.

    Args:
        num_blocks: Number of all blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks - 1
        self.free = deque(range(SCRATCH_BLOCK + 1, num_blocks))
        self._caches: list[KvCache] = []
        self._moments = itertools.count()

    def join(self, cache: KvCache) -> int:
        """Add a cache and return its quota: all blocks for the first one, none for others."""
        self._caches.append(cache)
        return self.num_blocks if len(self._caches) == 1 else 0

    def moment(self) -> int:
        """Return a number that is greater than all before it."""
        return next(self._moments)

    def take(self) -> int:
        """Return a block for a cache whose requests use fewer than its quota."""
        if self.free:
            return self.free.popleft()
        since = {cache.unused_since: cache for cache in self._caches}
        return since[min(moment for moment in since if moment is not None)].evict_oldest()


@dataclass(eq=False)
class CachedBlock:
    """A node of the tree: a block with known contents.

    Attributes:
        token_ids: int32, tokens whose keys and values the block holds; only a leaf may be partially filled.
        num_prompt: Number of leading tokens that were computed as prompt; 0 if both forms have the same bits.
        name: Digest of salt, tokens and forms from the root on. Contents of the same name are equal, on one
            engine and type of machine.
        depth: Number of nodes between it and the root.
        wanted_s: Moment at which the content was last handed to the disk (``stored_blocks``).
        children: Nodes behind it, by their keys.
        by_order: The same by ``num_prompt``, sorted by their tokens. So the one that shares most of the
            beginning of a text stands beside that text's place.
    """

    block: int
    token_ids: TokenIds
    num_prompt: int
    parent: CachedBlock | None
    name: bytes
    depth: int = 0
    wanted_s: float = -math.inf
    children: dict[tuple[bytes, int], CachedBlock] = field(default_factory=dict)
    by_order: dict[int, list[CachedBlock]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[bytes, int]:
        """Key of the node among its siblings."""
        return (self.token_ids.tobytes(), self.num_prompt)


def _name_behind(name: bytes, token_ids: TokenIds, num_prompt: int) -> bytes:
    described = name + num_prompt.to_bytes(4, "little") + token_ids.tobytes()
    return hashlib.blake2b(described, digest_size=_NAME_BYTES).digest()


def _tokens_of(node: CachedBlock) -> list[int]:
    token_ids: list[int] = node.token_ids.tolist()
    return token_ids


@dataclass
class BlockTable:
    """The blocks of one request.

    Attributes:
        blocks: Blocks in order, each with ``block_size`` positions.
        num_committed: Number of leading blocks that are in the tree.
        last_node: Node of the last committed block; the root if there is none.
    """

    blocks: list[int]
    num_committed: int
    last_node: CachedBlock


class KvCache:
    """Allocates, shares, caches and evicts blocks. The keys and values are stored elsewhere.

    Attributes:
        quota: Number of blocks that its requests may use.
        num_used: Number of blocks that its requests use.
        on_full: Called with each node that a request has filled or shares.

    Args:
        pool: Blocks of the engine.
        block_size: Positions in a block.
        copy_block: Copies keys and values of one block (first argument) to another (second).
        has_one_form: Whether a position has the same bits as prompt and as output.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        copy_block: Callable[[int, int], None],
        *,
        has_one_form: bool,
    ) -> None:
        self.block_size = block_size
        self.num_used = 0
        self.on_full: Callable[[CachedBlock], None] = lambda node: None
        self._has_one_form = has_one_form
        self._pool = pool
        self._copy_block = copy_block
        self._num_users = [0] * (pool.num_blocks + 1)
        self._node_of: list[CachedBlock | None] = [None] * (pool.num_blocks + 1)
        # Cached blocks without users -> moment since when, oldest first.
        self._unused: OrderedDict[int, int] = OrderedDict()
        self._roots: dict[str, CachedBlock] = {}
        self.quota = pool.join(self)

    @property
    def num_free_blocks(self) -> int:
        """Number of further blocks that its requests may use, including cached ones."""
        return self.quota - self.num_used

    @property
    def unused_since(self) -> int | None:
        """Moment of the pool since which no request has used its oldest cached block; None without one."""
        return next(iter(self._unused.values()), None)

    def _root(self, salt: str) -> CachedBlock:
        if salt not in self._roots:
            if len(self._roots) > self._pool.num_blocks:
                self._roots = {each: root for each, root in self._roots.items() if root.children}
            name = hashlib.blake2b(salt.encode(), digest_size=_NAME_BYTES).digest()
            self._roots[salt] = CachedBlock(SCRATCH_BLOCK, NO_TOKENS, 0, None, name)
        return self._roots[salt]

    def start(
        self, token_ids: TokenIds, num_prompt: int, most: int | None = None, salt: str = ""
    ) -> tuple[BlockTable, int]:
        """Find the cached part of a request's tokens.

        At least the last token is left to compute, for its logits, and never exactly one token of the prompt,
        because a chunk has at least two.

        Args:
            token_ids: int32 [n], n >= 1, all known tokens.
            num_prompt: Leading tokens that the request computes as prompt.
            most: Most positions that may be reused; None for all.
            salt: Only blocks of requests with the same salt are reused.

        Returns:
            The request's table and the number of cached leading positions.
        """
        size = self.block_size
        limit = len(token_ids) - 1
        if num_prompt > limit:
            limit = max(num_prompt - 2, 0)
        limit = limit if most is None else min(limit, most)
        node = self._root(salt)
        blocks: list[int] = []
        for node in self.path(token_ids[:limit], num_prompt, salt):
            self._use(node.block)
            blocks.append(node.block)
        num_cached = len(blocks) * size
        table = BlockTable(blocks, len(blocks), node)
        num_cached += self._reuse_part(table, token_ids[num_cached:limit], num_prompt - num_cached)
        if num_prompt - num_cached == 1:
            self._drop_user(blocks.pop())
            num_cached -= size
            assert node.parent is not None
            table.num_committed, table.last_node = len(blocks), node.parent
        return table, num_cached

    def count_cached(self, token_ids: TokenIds, salt: str = "") -> int:
        """Return how many leading tokens of a prompt are cached in whole blocks."""
        return self.block_size * sum(1 for _ in self.path(token_ids, len(token_ids), salt))

    def path(self, token_ids: TokenIds, num_prompt: int, salt: str = "") -> Iterator[CachedBlock]:
        """Return the nodes that hold the leading tokens as the request would compute them."""
        size = self.block_size
        node = self._root(salt)
        for begin in range(0, len(token_ids) - size + 1, size):
            prompt_here = self._prompt_part(num_prompt - begin, size)
            child = node.children.get((token_ids[begin : begin + size].tobytes(), prompt_here))
            if child is None:
                return
            yield child
            node = child

    def names(self, token_ids: TokenIds, num_prompt: int, salt: str = "") -> Iterator[bytes]:
        """Return the names of all whole blocks of a text, cached or not."""
        size, name = self.block_size, self._root(salt).name
        for begin in range(0, len(token_ids) - size + 1, size):
            name = _name_behind(
                name, token_ids[begin : begin + size], self._prompt_part(num_prompt - begin, size)
            )
            yield name

    def holds(self, node: CachedBlock) -> bool:
        """Return whether a node's block has its content still."""
        return self._node_of[node.block] is node

    def add(
        self,
        token_ids: TokenIds,
        num_prompt: int,
        salt: str,
        begin: int,
        contents: Sequence[memoryview],
        write: Callable[[int, memoryview], None],
    ) -> list[CachedBlock]:
        """Cache whole blocks of a text whose contents are known, as far as there are blocks for them.

        Args:
            token_ids: int32 [n].
            num_prompt: Leading tokens that are computed as prompt.
            salt: See ``start``.
            begin: Number of the first of these blocks in the text. The contents of those before are cached.
            contents: The contents.
            write: Writes a content to a block.

        Returns:
            The nodes from the root to the last one that is cached now.
        """
        node, nodes = self._root(salt), list(self.path(token_ids, num_prompt, salt))
        for node in nodes:
            self._use(node.block)
        table = BlockTable([each.block for each in nodes], len(nodes), node)
        has_been_evicted = len(nodes) < begin
        for content in () if has_been_evicted else contents[len(nodes) - begin :]:
            block = self._allocate()
            if block is None:
                break
            write(block, content)
            table.blocks.append(block)
            self._commit_next(table, token_ids, self.block_size, num_prompt)
            nodes.append(table.last_node)
        self._give_back(table)
        return nodes

    def _prompt_part(self, num_prompt: int, num_positions: int) -> int:
        """Return how many of the next positions are prompt, as far as their bits show it."""
        return 0 if self._has_one_form else min(max(num_prompt, 0), num_positions)

    def _reuse_part(self, table: BlockTable, wanted: TokenIds, num_prompt: int) -> int:
        """Continue in a leaf or a copy of a block that begins like ``wanted``; returns positions gained."""
        wanted = wanted[: self.block_size]
        prompt_here = self._prompt_part(num_prompt, self.block_size)
        best, best_length, best_is_leaf = None, 0, False
        for nodes in table.last_node.by_order.values():
            place = bisect_left(nodes, wanted.tolist(), key=_tokens_of)
            for node in nodes[max(place - 1, 0) : place + 1]:
                length = count_accepted(node.token_ids, wanted)
                if node.num_prompt != prompt_here:
                    length = min(length, node.num_prompt, prompt_here)
                if num_prompt - length == 1:
                    length -= 1
                # On a tie, prefer a block that ends there, which needs no copy.
                leaf = table.last_node.children.get((wanted[:length].tobytes(), node.num_prompt))
                is_leaf = leaf is not None and length < self.block_size
                if length > best_length or (is_leaf and length == best_length and not best_is_leaf):
                    best, best_length, best_is_leaf = leaf if is_leaf else node, length, is_leaf
        if best is None:
            return 0
        self._use(best.block)
        if best_is_leaf:
            # The usual case: a request continues after a round.
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
        """Allocate blocks for the first ``num_positions`` positions of a request.

        Returns:
            False, without allocating anything, if there are not enough blocks.
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
        """Add a request's full blocks to the tree, so that other requests can share them.

        Args:
            table: The request's table.
            token_ids: int32, its known tokens.
            num_computed: Leading positions whose keys and values are final.
            num_prompt: Leading positions that were computed as prompt.
        """
        size = self.block_size
        while (table.num_committed + 1) * size <= num_computed:
            self._commit_next(table, token_ids, size, num_prompt)
            self.on_full(table.last_node)

    def _commit_next(self, table: BlockTable, token_ids: TokenIds, num_tokens: int, num_prompt: int) -> None:
        begin = table.num_committed * self.block_size
        token_ids = token_ids[begin : begin + num_tokens].copy()
        num_prompt = self._prompt_part(num_prompt - begin, num_tokens)
        node = CachedBlock(
            block=table.blocks[table.num_committed],
            token_ids=token_ids,
            num_prompt=num_prompt,
            parent=table.last_node,
            name=_name_behind(table.last_node.name, token_ids, num_prompt),
            depth=table.num_committed,
        )
        twin = table.last_node.children.get(node.key)
        if twin is None:
            self._remember(node)
            twin = node
        else:  # another request computed the same block, with the same bits
            self._use(twin.block)
            self._drop_user(node.block)
            table.blocks[table.num_committed] = twin.block
        table.num_committed += 1
        table.last_node = twin

    def release(self, table: BlockTable, token_ids: TokenIds, num_computed: int, num_prompt: int) -> None:
        """Free a request's blocks and keep their contents for reuse; arguments as in ``commit``."""
        self.commit(table, token_ids, num_computed, num_prompt)
        num_rest = num_computed - table.num_committed * self.block_size
        if num_rest > 0:
            self._commit_next(table, token_ids, num_rest, num_prompt)
        self._give_back(table)

    def discard(self, table: BlockTable) -> None:
        """Free a request's blocks without reusing uncommitted contents."""
        self._give_back(table)

    def _give_back(self, table: BlockTable) -> None:
        # Last block first, so that a node is always evicted before its ancestors.
        for block in reversed(table.blocks):
            self._drop_user(block)
        table.blocks.clear()
        table.num_committed = 0

    def evict_oldest(self) -> int:
        """Forget the cached block that was unused for longest, and return it."""
        block, _ = self._unused.popitem(last=False)
        node = self._node_of[block]
        assert node is not None and not node.children
        self._forget(node)
        return block

    def _use(self, block: int) -> None:
        self.num_used += not self._num_users[block]
        self._num_users[block] += 1
        self._unused.pop(block, None)

    def _drop_user(self, block: int) -> None:
        self._num_users[block] -= 1
        if self._num_users[block]:
            return
        self.num_used -= 1
        if self._node_of[block] is None:
            self._pool.free.append(block)
        else:
            self._unused[block] = self._pool.moment()

    def _allocate(self) -> int | None:
        if self.num_used >= self.quota:
            return None
        block = self._pool.take()
        self._use(block)
        return block

    def _remember(self, node: CachedBlock) -> None:
        assert node.parent is not None
        node.parent.children[node.key] = node
        siblings = node.parent.by_order.setdefault(node.num_prompt, [])
        insort(siblings, node, key=_tokens_of)
        self._node_of[node.block] = node

    def _forget(self, node: CachedBlock) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
        siblings = node.parent.by_order[node.num_prompt]
        del siblings[bisect_left(siblings, _tokens_of(node), key=_tokens_of)]
        if not siblings:
            del node.parent.by_order[node.num_prompt]
        self._node_of[node.block] = None
