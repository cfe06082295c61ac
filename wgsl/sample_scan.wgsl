// The best (score, id) of every strided slice of the logits; a thread a slice. The score is the
// logit, or logit / temperature + Gumbel noise.
override N: u32;
override SLICES: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= SLICES) { return; }
  let position = step.position + step.num_tokens;
  let greedy = step.temperature <= 0.0;
  var best = -3.4e38;
  var choice = id.x;
  for (var i = id.x; i < N; i += SLICES) {
    var score = logits[i];
    if (!greedy) { score = score / step.temperature + gumbel(step.seed, position, i); }
    if (score > best) {
      best = score;
      choice = i;
    }
  }
  best_score[id.x] = best;
  best_id[id.x] = choice;
}
