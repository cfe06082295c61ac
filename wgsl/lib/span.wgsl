// How a context of `length` tokens is split: each split takes `span_size` tokens, whole tiles.
fn span_size(length: u32) -> u32 {
  return max(1u, (length + SPLITS * TILE - 1u) / (SPLITS * TILE)) * TILE;
}
