// Draws among the tokens that top_k, top_p and min_p leave: those that have less than top_k
// likelier ones, less than top_p of the probability above them, and at least min_p of the
// likeliest one's. Instead of sorting, one is drawn from all; if it is not among them, then none is
// that is no likelier, and the next is drawn from the rest. The noise of a token is the same in
// every round, so this is the best of those that are left, whatever the order of the rounds. Only
// slices whose largest logit is above a limit have to be looked at for what is above it.
override N: u32;
override SLICES: u32;
override SLICE: u32;
var<workgroup> accepted: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  var best = LOWEST;
  var at = 0u;
  for (var s = lane; s < SLICES; s += WORKGROUP) {
    if (slices[s].x > best) {
      best = slices[s].x;
      at = s;
    }
  }
  let top = slices[team_best(best, at, lane)].x;
  var sum = 0.0;
  best = LOWEST;
  at = N - 1u;
  for (var s = lane; s < SLICES; s += WORKGROUP) {
    sum += slices[s].y * exp((slices[s].x - top) * scale());
    if (slices[s].z > best) {
      best = slices[s].z;
      at = bitcast<u32>(slices[s].w);
    }
  }
  let mass = team_sum(sum, lane);

  var choice = 0u;
  loop {
    choice = team_best(best, at, lane);
    let drawn = adjusted[choice];
    var rank = 0.0;
    var above = 0.0;
    best = LOWEST;
    at = N - 1u;
    for (var s = lane; s < SLICES; s += WORKGROUP) {
      if (!(slices[s].x > drawn)) { continue; }
      for (var i = s * SLICE; i < min((s + 1u) * SLICE, N); i++) {
        let z = adjusted[i];
        if (!(z > drawn)) { continue; }
        rank += 1.0;
        above += exp((z - top) * scale());
        let next = score(z, i);
        if (next > best) {
          best = next;
          at = i;
        }
      }
    }
    rank = team_sum(rank, lane);
    above = team_sum(above, lane);
    if (lane == 0u) {
      let most = select(sampling.top_k, N, sampling.top_k == 0u);
      let fits = rank < f32(most) && above < sampling.top_p * mass
              && exp((drawn - top) * scale()) >= sampling.min_p;
      accepted = select(0u, 1u, fits || rank == 0.0);
    }
    if (workgroupUniformLoad(&accepted) == 1u) { break; }
  }
  if (lane == 0u) {
    counts[choice] += 1u;
    advance(choice);
  }
}
