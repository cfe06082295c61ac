// Four elements of an attention, joined from its spans: of a query head of the token that sees
// `length`, in `row`: sum(parts * e^(top - max)) / sum(total * e^(top - max)).
const JOIN_AHEAD = 8u;  // spans loaded at a time: loads take long, but overlap

fn joined(row: u32, length: u32, quad: u32) -> vec4<f32> {
  let begin = (seen_from(length) - span_origin()) / span_size();
  let end = (length - 1u - span_origin()) / span_size() + 1u;
  let first = row * num_spans();
  var top = -3.0e38;
  var total = 0.0;
  var sum = vec4<f32>(0.0);
  for (var s = begin; s < end; s += JOIN_AHEAD) {
    var part: array<vec4<f32>, JOIN_AHEAD>;
    var stat: array<vec2<f32>, JOIN_AHEAD>;
    var new_top = top;
    for (var a = 0u; a < JOIN_AHEAD; a++) {
      let at = first + min(s + a, end - 1u);
      part[a] = parts[at * (HEAD_DIM / 4u) + quad];
      stat[a] = stats[at];
    }
    for (var a = 0u; a < JOIN_AHEAD; a++) { new_top = max(new_top, stat[a].x); }
    let fade = exp(top - new_top);
    top = new_top;
    total *= fade;
    sum *= fade;
    for (var a = 0u; a < JOIN_AHEAD; a++) {
      let weight = select(0.0, exp(stat[a].x - top), s + a < end);
      total += stat[a].y * weight;
      sum += part[a] * weight;
    }
  }
  return sum / total;
}
