// Joins the spans of an attention: y = sum(parts * e^(top - max)) / sum(total * e^(top - max));
// a thread a pair of elements of a query head of a token.
const PAIRS = HEAD_DIM / 2u;
override Q_HEADS: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= Q_HEADS * PAIRS || id.y >= step.num_tokens) { return; }
  let row = id.y * Q_HEADS + id.x / PAIRS;
  let length = step.position + id.y + 1u;
  // The spans that the token sees.
  let begin = (seen_from(length) - span_origin()) / span_size();
  let end = (length - 1u - span_origin()) / span_size() + 1u;
  let first = row * num_spans();
  var top = -3.0e38;
  for (var s = begin; s < end; s++) { top = max(top, stats[first + s].x); }
  var total = 0.0;
  var sum = vec2<f32>(0.0);
  for (var s = begin; s < end; s++) {
    let weight = exp(stats[first + s].x - top);
    total += stats[first + s].y * weight;
    sum += parts[(first + s) * PAIRS + id.x % PAIRS] * weight;
  }
  y[id.y * Q_HEADS * PAIRS + id.x] = sum / total;
}
