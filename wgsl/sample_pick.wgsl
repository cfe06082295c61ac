// The best of the slices becomes the next token.
// Ties go to the lowest id, as with argmax.
override SLICES: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  var best = -3.4e38;
  var choice = 0xffffffffu;
  for (var i = lane; i < SLICES; i += WORKGROUP) {
    if (best_score[i] > best || (best_score[i] == best && best_id[i] < choice)) {
      best = best_score[i];
      choice = best_id[i];
    }
  }
  choice = team_best(best, choice, lane);
  if (lane == 0u) { advance(choice); }
}
