// The largest, or the sum, of each head's values over all lanes: over teams of TEAM neighbouring
// lanes of a subgroup first, then over the teams.
const TEAMS = WORKGROUP / TEAM;
var<workgroup> heads_scratch: array<f32, HEADS * TEAMS>;

// The sum over the SHARE lanes that share a token.
fn share_sum(own: f32, lane: u32) -> f32 {
  var sum = own;
  for (var step = SHARE / 2u; step > 0u; step /= 2u) { sum += subgroupShuffleXor(sum, step); }
  return sum;
}

fn fold_heads(own: array<f32, HEADS>, lane: u32, largest: bool) -> array<f32, HEADS> {
  for (var g = 0u; g < HEADS; g++) {
    var a = own[g];
    for (var step = TEAM / 2u; step > 0u; step /= 2u) {
      let b = subgroupShuffleXor(a, step);
      a = select(a + b, max(a, b), largest);
    }
    if (lane % TEAM == 0u) { heads_scratch[g * TEAMS + lane / TEAM] = a; }
  }
  workgroupBarrier();
  var result: array<f32, HEADS>;
  for (var g = 0u; g < HEADS; g++) {
    var a = heads_scratch[g * TEAMS];
    for (var t = 1u; t < TEAMS; t++) {
      let b = heads_scratch[g * TEAMS + t];
      a = select(a + b, max(a, b), largest);
    }
    result[g] = a;
  }
  workgroupBarrier();
  return result;
}
