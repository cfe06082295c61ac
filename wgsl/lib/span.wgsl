// How a step's attention is split over the context that its first token sees, from whole blocks on:
// into `num_spans` spans of `span_size` tokens, whole tiles. The fewer tokens a step has, the more
// spans there is room for: CAPACITY pairs of a token and a span.
fn num_spans() -> u32 { return clamp(CAPACITY / step.num_tokens, 1u, SPLITS); }

fn span_origin() -> u32 { return seen_from(step.position + 1u) / KV_BLOCK * KV_BLOCK; }

fn span_size() -> u32 {
  let tiles = num_spans() * TILE;
  let length = step.position + step.num_tokens - span_origin();
  return max(1u, (length + tiles - 1u) / tiles) * TILE;
}
