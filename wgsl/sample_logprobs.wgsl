// Log-probabilities, by the model's own logits, of the token chosen last and of the likeliest
// ones, into the ring. Ties go to the lowest id.
override N: u32;
override RING: u32;
override WORDS: u32;
const LOWEST = -3.4e38;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  let entry = (step.num_sampled + RING - 1u) % RING * WORDS;
  var top = 0.0;
  var total = 0.0;
  var last_value = 3.4e38;
  var last = 0u;
  for (var n = 0u; n <= sampling.num_top; n++) {
    var best = LOWEST;
    var at = N - 1u;
    for (var i = lane; i < N; i += WORKGROUP) {
      let value = logits[i];
      let later = value < last_value || (value == last_value && i > last);
      if (later && value > best) {
        best = value;
        at = i;
      }
    }
    let id = team_best(best, at, lane);
    let value = logits[id];
    if (n == 0u) {
      // The likeliest is found first, for the sum; then again, as the first of the list.
      top = value;
      var sum = 0.0;
      for (var i = lane; i < N; i += WORKGROUP) { sum += exp(logits[i] - top); }
      total = top + log(team_sum(sum, lane));
      if (lane == 0u) { logprobs[entry] = bitcast<u32>(logits[tokens[0]] - total); }
    } else {
      last_value = value;
      last = id;
      if (lane == 0u) {
        logprobs[entry + 2u * n - 1u] = id;
        logprobs[entry + 2u * n] = bitcast<u32>(value - total);
      }
    }
    workgroupBarrier();
  }
}
