// How a step's attention is split over the context: into `num_spans` spans of `span_size` tokens,
// whole tiles. The fewer tokens a step has, the more spans there is room for: CAPACITY pairs of a
// token and a span.
fn num_spans() -> u32 { return clamp(CAPACITY / step.num_tokens, 1u, SPLITS); }

fn span_size() -> u32 {
  let tiles = num_spans() * TILE;
  return max(1u, (step.position + step.num_tokens + tiles - 1u) / tiles) * TILE;
}
