// Joins the spans of attention_split: y = sum(parts * e^(top - max)) / sum(total * e^(top - max));
// a thread a pair of elements of a query head.
const PAIRS = HEAD_DIM / 2u;
override Q_HEADS: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= Q_HEADS * PAIRS) { return; }
  let head = id.x / PAIRS;
  let length = step.position + 1u;
  let span = span_size(length);
  let count = (length + span - 1u) / span;
  var top = -3.0e38;
  for (var s = 0u; s < count; s++) { top = max(top, stats[head * SPLITS + s].x); }
  var total = 0.0;
  var sum = vec2<f32>(0.0);
  for (var s = 0u; s < count; s++) {
    let i = head * SPLITS + s;
    let weight = exp(stats[i].x - top);
    total += stats[i].y * weight;
    sum += parts[i * PAIRS + id.x % PAIRS] * weight;
  }
  y[id.x] = sum / total;
}
