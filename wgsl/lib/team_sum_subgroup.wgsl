// The sum of v over a team of TEAM neighbouring lanes of one subgroup.
fn team_sum(value: f32, lane: u32) -> f32 {
  var v = value;
  for (var step = TEAM / 2u; step > 0u; step /= 2u) { v += subgroupShuffleXor(v, step); }
  return v;
}
