// The sum of v over a team of TEAM neighbouring lanes, through workgroup memory.
var<workgroup> team_scratch: array<f32, WORKGROUP>;

fn team_sum(value: f32, lane: u32) -> f32 {
  team_scratch[lane] = value;
  workgroupBarrier();
  for (var step = TEAM / 2u; step > 0u; step /= 2u) {
    if (lane % TEAM < step) { team_scratch[lane] += team_scratch[lane + step]; }
    workgroupBarrier();
  }
  let sum = team_scratch[lane - lane % TEAM];
  workgroupBarrier();
  return sum;
}
