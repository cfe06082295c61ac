// Log-probabilities, by the model's own logits, of the token chosen last and of the likeliest
// ones, into the ring. Ties go to the lowest id. The next in the order is the largest of a slice
// that none was taken from, or some other token of a slice that was.
override N: u32;
override SLICES: u32;
override SLICE: u32;
override RING: u32;
override WORDS: u32;
const LOWEST = -3.4e38;

var<private> last_value: f32 = 3.4e38;
var<private> last_id: u32 = 0u;

// Whether a token comes after the one that was taken last.
fn later(value: f32, id: u32) -> bool {
  return value < last_value || (value == last_value && id > last_id);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  let entry = (step.num_sampled + RING - 1u) % RING * WORDS;
  var total = 0.0;
  for (var n = 0u; n <= sampling.num_top; n++) {
    var best = LOWEST;
    var at = N - 1u;
    for (var s = lane; s < SLICES; s += WORKGROUP) {
      let largest = bitcast<u32>(slices[s].w);
      if (later(slices[s].x, largest)) {
        if (slices[s].x > best) {
          best = slices[s].x;
          at = largest;
        }
        continue;
      }
      for (var i = s * SLICE; i < min((s + 1u) * SLICE, N); i++) {
        if (later(logits[i], i) && logits[i] > best) {
          best = logits[i];
          at = i;
        }
      }
    }
    let id = team_best(best, at, lane);
    let value = logits[id];
    if (n == 0u) {
      // The likeliest is found first, for the sum; then again, as the first of the list.
      var sum = 0.0;
      for (var s = lane; s < SLICES; s += WORKGROUP) {
        sum += slices[s].y * exp(slices[s].x - value);
      }
      total = value + log(team_sum(sum, lane));
      if (lane == 0u) { logprobs[entry] = bitcast<u32>(logits[tokens[0]] - total); }
    } else {
      last_value = value;
      last_id = id;
      if (lane == 0u) {
        logprobs[entry + 2u * n - 1u] = id;
        logprobs[entry + 2u * n] = bitcast<u32>(value - total);
      }
    }
    workgroupBarrier();
  }
}
