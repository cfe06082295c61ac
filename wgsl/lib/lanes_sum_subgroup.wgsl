// The sum over LANES neighbouring lanes of a subgroup.
fn lanes_sum(value: f32) -> f32 {
  var v = value;
  for (var step = LANES / 2u; step > 0u; step /= 2u) { v += subgroupShuffleXor(v, step); }
  return v;
}
