// Draws among the tokens that top_k, top_p and min_p leave: those that have less than top_k
// likelier ones, less than top_p of the probability above them, and at least min_p of the
// likeliest one's. Instead of sorting, one is drawn from all; if it is not among them, then none is
// that is no likelier, and the next is drawn from the rest. The noise of a token is the same in
// every round, so this is the best of those that are left, whatever the order of the rounds.
override N: u32;
const LOWEST = -1.0e30;
var<workgroup> accepted: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  let greedy = step.temperature <= 0.0;
  let scale = select(1.0 / step.temperature, 1.0, greedy);
  let position = step.position + step.num_tokens;
  let most = select(sampling.top_k, N, sampling.top_k == 0u);

  var best = LOWEST;
  var at = N - 1u;
  for (var i = lane; i < N; i += WORKGROUP) {
    if (adjusted[i] > best) {
      best = adjusted[i];
      at = i;
    }
  }
  let top = adjusted[team_best(best, at, lane)];
  var sum = 0.0;
  for (var i = lane; i < N; i += WORKGROUP) { sum += exp((adjusted[i] - top) * scale); }
  let mass = team_sum(sum, lane);

  var choice = 0u;
  var roof = LOWEST;  // of what was refused
  loop {
    best = LOWEST;
    at = N - 1u;
    for (var i = lane; i < N; i += WORKGROUP) {
      if (adjusted[i] > roof) {
        var score = adjusted[i];
        if (!greedy) { score = score * scale + gumbel(step.seed, position, i); }
        if (score > best) {
          best = score;
          at = i;
        }
      }
    }
    choice = team_best(best, at, lane);
    let drawn = adjusted[choice];
    var rank = 0.0;
    var above = 0.0;
    for (var i = lane; i < N; i += WORKGROUP) {
      if (adjusted[i] > drawn) {
        rank += 1.0;
        above += exp((adjusted[i] - top) * scale);
      }
    }
    rank = team_sum(rank, lane);
    above = team_sum(above, lane);
    if (lane == 0u) {
      let fits = rank < f32(most) && above < sampling.top_p * mass
              && exp((drawn - top) * scale) >= sampling.min_p;
      accepted = select(0u, 1u, fits || rank == 0.0);
    }
    if (workgroupUniformLoad(&accepted) == 1u) { break; }
    roof = drawn;
  }
  if (lane == 0u) {
    counts[choice] += 1u;
    advance(choice);
  }
}
